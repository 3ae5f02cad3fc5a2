"""``blade_llm_quantize``: what it refuses and says, how much memory and space it takes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.families import ROWS, save_row
from engine_support.quantize_runs import BLOCKS, SIZES, quantize, stored_linears
from engine_support.tiny_models import save_model
from safetensors.torch import load_file, save_file

from blade_llm.cli.quantize import main
from blade_llm.cli.quantize_flags import GROUPS
from blade_llm.cli.split import main as split_main
from blade_llm.hub.locking import locked
from blade_llm.models.config import load_model_config
from blade_llm.models.tensors import expected_tensors
from blade_llm.quantize import run
from blade_llm.quantize.output import OutputFolder
from blade_llm.quantize.source import TensorReader
from blade_llm.weights.split import space

REFERENCE = {
    "model", "output_dir", "bit", "quant_mode", "quant_dtype", "quant_algo", "block_wise_quant", "block_size",
    "calib_data", "calib_data_file", "cpu_offload", "tensor_parallel_size", "experimental_pad",
}  # fmt: skip
"""BladeLLM's own flags."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("whole")
    save_model(folder, "llama", torch.bfloat16, **SIZES)
    return folder


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    try:
        code: Any = main(arguments)
    except SystemExit as error:
        code = error.code
    assert code in (1, 2)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("blade_llm_quantize: ")
    return str(said.err)


def test_flags_of_the_reference_are_there_with_its_defaults() -> None:
    flags = {flag.name: flag for _, group in GROUPS for flag in group}
    assert flags.keys() >= REFERENCE
    assert {name: flags[name].default for name in REFERENCE - {"model", "output_dir"}} == {
        "bit": "8",
        "quant_mode": "weight_only_quant",
        "quant_dtype": "int",
        "quant_algo": "minmax",
        "block_wise_quant": False,
        "block_size": 64,
        "calib_data": ["hello world!"],
        "calib_data_file": None,
        "cpu_offload": False,
        "tensor_parallel_size": None,
        "experimental_pad": False,
    }


@pytest.mark.parametrize("algorithm", ["gptq", "awq", "smoothquant", "smoothquant+", "smoothquant_gptq"])
def test_calibration_needs_the_tokenizer(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], algorithm: str
) -> None:
    said = refused(["--model", str(model), "--output_dir", str(tmp_path / "o"), "--quant_algo", algorithm], capsys)
    assert f"calibration: {model / 'tokenizer.json'} is missing" in said
    assert not list(tmp_path.iterdir())


def test_what_is_refused(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "notes").write_text("mine")
    (tmp_path / "file").write_text("mine")
    common = ["--model", str(model), "--output_dir", str(tmp_path / "new")]
    cases: list[tuple[list[str], str]] = [
        (
            ["--quant_mode", "act_and_weight_quant", "--bit", "4"],
            "--quant_mode act_and_weight_quant has 8 bits, not 4; leave --bit out, or leave --quant_mode out",
        ),
        (
            ["--quant_mode", "act_and_weight_quant", "--block_wise_quant"],
            "act_and_weight_quant has one scale an output and no zero points; leave --block_wise_quant out",
        ),
        (["--quant_mode", "act_and_weight_quant", "--asymmetric"], "leave --asymmetric out"),
        (
            ["--quant_mode", "act_and_weight_quant", "--quant_algo", "awq"],
            "--quant_algo awq is for weights alone; with --quant_mode act_and_weight_quant give minmax, gptq,",
        ),
        (
            ["--quant_dtype", "fp8", "--quant_algo", "gptq"],
            "--quant_algo gptq chooses integers; with --quant_dtype fp8",
        ),
        (
            ["--calib_data", "some text", "more"],
            "--quant_algo minmax needs no texts; leave out --calib_data, or give another --quant_algo",
        ),
        (["--calib_data_file", "x.jsonl"], "--quant_algo minmax needs no texts; leave out --calib_data_file"),
        (["--calib_samples", "9", "--calib_length", "9"], "leave out --calib_samples, --calib_length, or give another"),
        (["--damping", "0.1"], "--damping is for gptq and smoothquant_gptq; leave it out"),
        (["--quant_algo", "awq", "--act_order", "false"], "--act_order is for gptq and smoothquant_gptq; leave it out"),
        (["--quant_algo", "gptq", "--damping", "nan"], "--damping nan: give a share of at least 0, such as 0.01"),
        (["--quant_algo", "gptq", "--smoothing_strength", "0.7"], "--smoothing_strength is for smoothquant and"),
        (["--quant_algo", "smoothquant", "--smoothing_strength", "1.5"], "give a number from 0 to 1, such as 0.5"),
        (
            ["--quant_algo", "gptq", "--calib_data", "a", "--calib_data_file", "x.jsonl"],
            "--calib_data and --calib_data_file say the same; leave one of them out",
        ),
        (["--quant_algo", "gptq", "--calib_data", ""], "--calib_data is empty; give texts like those"),
        (["--quant_algo", "gptq", "--calib_data_file", "x.jsonl"], "No such file or directory: 'x.jsonl'"),
        (["--bit", "5"], "argument --bit: invalid choice: '5'"),
        (["--bits", "4"], "unknown flag --bits; did you mean --bit?"),
        (["--quant_dtype", "fp8", "--bit", "4"], "--quant_dtype fp8 has 8 bits, not 4"),
        (["--quant_dtype", "fp8", "--block_wise_quant"], "--block_wise_quant is for integers"),
        (["--quant_dtype", "fp8", "--asymmetric"], "--asymmetric is for integers"),
        (["--block_size", "32"], "--block_size 32 does nothing by itself; add --block_wise_quant"),
        (["--max_shard_size", "0"], "--max_shard_size 0 holds nothing"),
        (
            ["--block_wise_quant", "--experimental_pad"],
            "--block_size 64 does not divide the 96 inputs of model.layers.0.mlp.down_proj and of 2 more layers; "
            "nothing is padded: give --block_size 32 or 16, or leave out --block_wise_quant",
        ),
        (
            ["--ignore", "lm_haed"],
            "--ignore lm_haed: the model has no linear layer of that name; did you mean lm_head?",
        ),
        (["--ignore", "re:("], "--ignore re:(: not a regular expression"),
        (["--ignore", "*"], "nothing is left to quantise"),
        (["-tp", "3"], "--tensor_parallel_size 3 does not divide"),
    ]
    for arguments, message in cases:
        assert message in refused([*common, *arguments], capsys), arguments
    elsewhere: list[tuple[Path, Path, str]] = [
        (model, full, f"{full} is not empty; delete it or give another --output_dir"),
        (model, tmp_path / "file", f"{tmp_path / 'file'} is not empty"),
        (model, model, f"{model} is not empty"),
        (tmp_path / "nowhere", tmp_path / "new", "nowhere"),
    ]
    for source, output, message in elsewhere:
        assert message in refused(["--model", str(source), "--output_dir", str(output)], capsys)
    assert (full / "notes").exists()
    assert {file.name for file in tmp_path.iterdir() if not file.name.startswith(".")} == {"full", "file"}
    assert not list(tmp_path.rglob("*.safetensors"))


def test_what_is_quantised_already(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quantize(model, tmp_path / "small") == 0
    capsys.readouterr()
    said = refused(["--model", str(tmp_path / "small"), "--output_dir", str(tmp_path / "again")], capsys)
    assert "is quantised already (compressed-tensors); the server loads it as it is, or quantise the original" in said
    shutil.copytree(model, tmp_path / "gptq")
    fields = json.loads((model / "config.json").read_text())
    for changed in ({"quantization_config": {"quant_method": "gptq"}}, {"text": {"quantization_config": "gptq"}}):
        (tmp_path / "gptq" / "config.json").write_text(json.dumps({**fields, **changed}))
        said = refused(["--model", str(tmp_path / "gptq"), "--output_dir", str(tmp_path / "again")], capsys)
        assert "is quantised already (gptq)" in said


def test_models_that_are_not_quantised(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_row(tmp_path / "gpt2", ROWS["gpt2"])
    save_row(tmp_path / "nemotron", ROWS["nemotron-modules"])
    split_main(["--model", str(model), "-tp", "2", "--output_dir", str(tmp_path / "split")])
    shutil.rmtree(shutil.copytree(tmp_path / "split", tmp_path / "half") / "rank_1")
    capsys.readouterr()
    cases = [
        ("gpt2", [], "is stored as [in, out], which the compressed-tensors format does not have"),
        ("nemotron", [], "NemotronForCausalLM is served through transformers' modules"),
        ("split", ["-tp", "4"], "holds a model split for --tensor_parallel_size 2, not 4"),
        ("half", [], "the part of rank 1 is missing"),
    ]
    for name, flags, message in cases:
        common = ["--model", str(tmp_path / name), "--output_dir", str(tmp_path / "new")]
        assert message in refused([*common, *flags], capsys)

    class Gguf(TensorReader):
        def __init__(self, folder: Path) -> None:
            super().__init__(folder)
            self.checkpoint = type(self.checkpoint)((folder / "model.gguf",), self.checkpoint.tensors)

    monkeypatch.setattr(run, "TensorReader", Gguf)
    said = refused(["--model", str(model), "--output_dir", str(tmp_path / "new")], capsys)
    assert "GGUF files are not quantised here; take the model's safetensors files" in said


@pytest.mark.parametrize("name", ["BertModel", "Qwen2Model", "Qwen2ForSequenceClassification"])
def test_models_that_generate_no_text(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    shutil.copytree(model, tmp_path / "whole")
    fields = json.loads((model / "config.json").read_text())
    (tmp_path / "whole" / "config.json").write_text(json.dumps({**fields, "architectures": [name]}))
    said = refused(["--model", str(tmp_path / "whole"), "--output_dir", str(tmp_path / "new")], capsys)
    assert f"{name} generates no text, and only models that generate text are quantised" in said
    assert "--task" not in said


@pytest.mark.parametrize("flags", [(), ("--quant_dtype", "fp8")])
def test_weights_that_are_not_finite_are_named(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(model, whole)
    tensors = load_file(whole / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name][3, 4] = torch.nan
    save_file(tensors, whole / "model.safetensors", {"format": "pt"})
    common = ["--model", str(whole), "--output_dir", str(tmp_path / "small"), *flags]
    said = refused(common, capsys)
    assert f"{name} cannot be quantised: 1 of 6144 weights are NaN or infinite" in said
    assert "--ignore model.layers.1.mlp.up_proj leaves it as it is" in said
    assert not (tmp_path / "small").exists()
    assert main([*common, "--ignore", "model.layers.1.mlp.up_proj"]) == 0


def test_a_disk_that_is_too_small(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(space.shutil, "disk_usage", lambda folder: usage._replace(free=100_000))
    said = refused(["--model", str(model), "--output_dir", str(tmp_path / "small")], capsys)
    assert "MB and its disk has 0.1 MB free: 0." in said
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_disk_that_becomes_full(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import errno
    import os

    original, written = os.pwrite, 0

    def full(descriptor: int, data: Any, offset: int) -> int:
        nonlocal written
        written += 1
        if written == 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    said = refused(["--model", str(model), "--output_dir", str(tmp_path / "small")], capsys)
    assert f"no space left for {tmp_path / 'small'}; what is complete is kept, the same command continues" in said
    monkeypatch.undo()
    assert quantize(model, tmp_path / "small") == 0


def test_where_nothing_is_begun_nothing_is_kept(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    said = refused(["--model", str(model), "--output_dir", str(tmp_path / "file" / "small")], capsys)
    assert "Not a directory" in said or "File exists" in said
    assert "is kept" not in said

    def interrupt(*arguments: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("blade_llm.cli.quantize.prepare", interrupt)
    assert quantize(model, tmp_path / "small") == 130
    assert capsys.readouterr().err == "blade_llm_quantize: stopped\n"


@pytest.mark.parametrize("exists", [True, False])
def test_a_second_run_says_that_it_waits(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], exists: bool
) -> None:
    """And refuses the folder that the first has made meanwhile."""
    if exists:
        (tmp_path / "small").mkdir()
    said: list[str] = []
    with locked(OutputFolder.at(tmp_path / "small").lock):
        second = threading.Thread(target=lambda: said.append(str(quantize(model, tmp_path / "small"))))
        second.start()
        seen = ""
        for _ in range(1200):
            seen += capsys.readouterr().err
            if "waiting" in seen or not second.is_alive():
                break
            second.join(0.05)
        assert seen == f"blade_llm_quantize: waiting for another run that writes {tmp_path / 'small'}\n"
        (tmp_path / "small").mkdir(exist_ok=True)
        (tmp_path / "small" / "config.json").write_text("{}")
    second.join()
    assert said == ["1"]
    assert "is not empty" in capsys.readouterr().err


def test_what_is_said(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "small").mkdir()  # empty is fine
    assert quantize(model, tmp_path / "small", *BLOCKS, "--cpu_offload", "--experimental_pad", "true") == 0
    said = capsys.readouterr()
    assert said.out == f"{tmp_path / 'small'}\n"
    rows = {words[1]: words[3] for line in said.err.splitlines() if (words := line.split()) and "layers.*" in line}
    kinds = ("mlp.gate", "mlp.up", "mlp.down", *(f"self_attn.{each}" for each in "qkvo"))
    assert rows == {f"model.layers.*.{kind}_proj": "3" for kind in kinds}
    assert "times smaller" in said.err


def test_progress_in_a_log(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("blade_llm.cli.progress.work.SECONDS_PER_LINE", 0.0)
    assert quantize(model, tmp_path / "small") == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("quantising ")]
    total = sum(tensor.nbytes for tensor in load_file(model / "model.safetensors").values())
    assert len(lines) == 30
    assert all(f" of {total} bytes (" in line and " s left), " in line for line in lines)
    assert lines[-1].startswith(f"quantising {total} of {total} bytes (100 %, about 0 s left), ")


def save_large(folder: Path, layers: int) -> Path:
    """A model whose layers take 7 MB each, the largest tensor 2 MB."""
    folder.mkdir()
    shape = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": layers, "vocab_size": 512}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 64, "eos_token_id": 1}
    fields = {"architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", **shape, **heads}
    (folder / "config.json").write_text(json.dumps(fields))
    expected = expected_tensors(load_model_config(folder))
    save_file({name: torch.rand(size).bfloat16() for name, size in expected.items()}, folder / "model.safetensors")
    return folder


def test_memory_holds_one_tensor_at_a_time(tmp_path: Path) -> None:
    """The peak of a process for a model of 24 layers is near that for one of 2."""
    code = (
        "import sys; from blade_llm.cli.quantize import main; code = main(sys.argv[1:]); "
        "print([line for line in open('/proc/self/status') if 'VmHWM' in line]); sys.exit(code)"
    )
    peaks = []
    for layers in (2, 24):
        whole = save_large(tmp_path / f"whole-{layers}", layers)
        arguments = ["--model", str(whole), "--output_dir", str(tmp_path / f"small-{layers}"), *BLOCKS]
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout.split("VmHWM:\\t")[1].split(" kB")[0]) * 1024)
    assert (tmp_path / "whole-24" / "model.safetensors").stat().st_size > 150e6
    assert peaks[1] - peaks[0] < 20e6, peaks


def test_what_is_left_alone_anyway_may_be_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output matrix of a tied model, which is in no file, and what is no linear layer."""
    save_model(tmp_path / "whole", "qwen2", torch.bfloat16, **SIZES, tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(tmp_path / "whole" / "model.safetensors")
    ignored = ("lm_head", "model.embed_tokens", "model.norm", "re:.*layernorm")
    assert quantize(tmp_path / "whole", tmp_path / "small", "--ignore", *ignored) == 0
    assert quantize(tmp_path / "whole", tmp_path / "plain") == 0
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "small" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()
    common = ["--model", str(tmp_path / "whole"), "--output_dir", str(tmp_path / "new")]
    capsys.readouterr()
    assert "--ignore lm_heads: the model has no linear layer" in refused([*common, "--ignore", "lm_heads"], capsys)


def test_files_that_say_how_another_checkpoint_is_quantised_are_not_copied(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "whole")
    for name in ("hf_quant_config.json", "quantize_config.json", "quant_config.json", "tokenizer.json"):
        (tmp_path / "whole" / name).write_text("{}")
    assert quantize(tmp_path / "whole", tmp_path / "small") == 0
    there = {file.name for file in (tmp_path / "small").iterdir()}
    assert "tokenizer.json" in there
    assert not any("quant_config" in name or name == "quantize_config.json" for name in there)


def test_ignored_layers_stay(model: Path, tmp_path: Path) -> None:
    before = load_file(model / "model.safetensors")
    assert quantize(model, tmp_path / "small", "--ignore", "*.down_proj", "model.layers.0.self_attn.q_proj") == 0
    for module, weight in stored_linears(tmp_path / "small").items():
        kept = module.endswith((".down_proj", "layers.0.self_attn.q_proj")) or module == "lm_head"
        assert torch.equal(weight, before[f"{module}.weight"].float()) == kept, module
