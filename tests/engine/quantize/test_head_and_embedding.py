"""The output matrix and the embedding table quantised, by choice: also of models that have one tensor for both."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.adapters import targets_of, write_adapter
from engine_support.calibrated import save_with_tokenizer, write_texts
from engine_support.families import ROWS, save_row
from engine_support.killed import disk_calls, killed_at
from engine_support.quantize_runs import BLOCKS, FORMS, SIZES, content, quantize, stored_linears
from engine_support.runner_driver import Driver, prompt_of
from engine_support.stored_tensors import same_bytes, tensors_of
from engine_support.thread_ranks import thread_ranks
from engine_support.tiny_models import engine_config, load_reference, reference_greedy, reference_logits, save_model
from safetensors.torch import save_file
from torch import Tensor

from blade_llm.cli.split import main as split
from blade_llm.lora.reader import read_adapter
from blade_llm.models.implementation import read_model_config
from blade_llm.models.memory import weight_bytes
from blade_llm.models.quantized.summary import describe
from blade_llm.quantize import writer
from blade_llm.quantize.options import QuantizeOptions
from blade_llm.quantize.report import REPORT_NAME
from blade_llm.quantize.run import prepare
from blade_llm.quantize.tied_head import untied
from blade_llm.runner import build_runner
from blade_llm.weights.checkpoint import open_checkpoint

HEAD = "--quant_lm_head"
BOTH = (HEAD, "--quant_embedding")
TABLE = "model.embed_tokens"
W8A8 = ("--quant_mode", "act_and_weight_quant")


def save(folder: Path, family: str = "qwen2", *, tied: bool, dtype: torch.dtype = torch.float16) -> Path:
    save_model(folder, family, dtype, tie_word_embeddings=tied, **SIZES)
    return folder


def config_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


def table_of(folder: Path) -> Tensor:
    """fp32: the embedding table that the files stand for."""
    stored = tensors_of(folder)
    scales = stored.get(f"{TABLE}.weight_scale")
    values = stored[f"{TABLE}.weight"].float()
    return values if scales is None else values * scales.float()


def as_plain(folder: Path, target: Path) -> Path:
    """A model of plain tensors with the numbers of a quantised one."""
    config = {name: value for name, value in config_of(folder).items() if name != "quantization_config"}
    target.mkdir()
    (target / "config.json").write_text(json.dumps(config))
    quantized = stored_linears(folder)
    kept = {
        name: tensor
        for name, tensor in tensors_of(folder).items()
        if not any(name.startswith(f"{module}.weight") for module in (*quantized, TABLE))
    }
    weights = {f"{module}.weight": weight for module, weight in quantized.items()}
    tensors = {**kept, **weights, f"{TABLE}.weight": table_of(folder)}
    save_file({name: tensor.float().contiguous() for name, tensor in tensors.items()}, target / "model.safetensors")
    return target


def generate(folder: Path, **options: Any) -> list[int]:
    return Driver(build_runner(engine_config(folder, **options))).generate(0, prompt_of(40), 24)


@pytest.mark.parametrize("tied", [False, True])
def test_the_numbers_are_those_of_the_formulas(tmp_path: Path, tied: bool) -> None:
    """The head in the layers' form, the table in 8 bits with a scale a row; of a tied one each has its own tensors."""
    whole = save(tmp_path / "whole", tied=tied)
    assert quantize(whole, tmp_path / "small", *BLOCKS, *BOTH) == 0
    before, after = tensors_of(whole), tensors_of(tmp_path / "small")
    original = before[f"{TABLE}.weight"]
    scale = (original.float().abs().amax(1, keepdim=True) / 255 * 2).half()
    assert torch.equal(after[f"{TABLE}.weight_scale"], scale)
    expected = (original.float() / scale.float()).round().clamp(-128, 127).to(torch.int8)
    assert torch.equal(after[f"{TABLE}.weight"], expected)
    head = (original if tied else before["lm_head.weight"]).float().unflatten(1, (-1, 32))
    scale = (head.abs().amax(-1, keepdim=True) / 15 * 2).half().float()
    numbers = ((head / scale).round().clamp(-8, 7) * scale).flatten(1)
    torch.testing.assert_close(stored_linears(tmp_path / "small")["lm_head"], numbers, rtol=1e-6, atol=1e-7)
    assert "lm_head.weight" not in after
    config = config_of(tmp_path / "small")
    assert config["tie_word_embeddings"] is False
    assert not {"lm_head", TABLE} & set(config["quantization_config"]["ignore"])
    report = json.loads((tmp_path / "small" / REPORT_NAME).read_text())
    assert {"lm_head.weight", f"{TABLE}.weight"} < report["tensors"].keys()
    assert report["bytes_before"] == sum(tensor.nbytes for tensor in before.values())
    assert report["bytes_after"] == sum(tensor.nbytes for tensor in after.values())
    card = (tmp_path / "small" / "README.md").read_text()
    assert "The output matrix is quantised as the linear layers are, to the nearest; embeddings have 8 bits" in card
    assert "Norms and routers are as in the original." in card


def test_without_the_flags_both_stay_as_they_are(tmp_path: Path) -> None:
    whole = save(tmp_path / "whole", tied=True)
    assert quantize(whole, tmp_path / "small", *BLOCKS) == 0
    assert "lm_head.weight_packed" not in tensors_of(tmp_path / "small")
    assert same_bytes(tensors_of(whole)[f"{TABLE}.weight"], tensors_of(tmp_path / "small")[f"{TABLE}.weight"])
    assert config_of(tmp_path / "small")["tie_word_embeddings"] is True


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("form", [*(name for name in FORMS if "zero" not in name), "w8a8"])
def test_transformers_and_the_engine_generate_the_same(tmp_path: Path, form: str, tied: bool) -> None:
    """And ranks and stages do, from the folder and from one that was split."""
    pytest.importorskip("compressed_tensors")
    whole, small = save(tmp_path / "whole", tied=tied), tmp_path / "small"
    assert quantize(whole, small, *FORMS.get(form, W8A8), *BOTH) == 0
    expected = reference_greedy(load_reference(small), prompt_of(40), 24)
    assert generate(small) == expected
    if form == "w8a8":  # a rank rounds by the largest of its own inputs
        return
    assert split(["-tp", "2", "--model", str(small), "--output_dir", str(tmp_path / "parts")]) == 0
    assert Driver(thread_ranks(small, 2)).generate(0, prompt_of(40), 24) == expected
    assert Driver(thread_ranks(tmp_path / "parts", 2)).generate(0, prompt_of(40), 24) == expected
    assert Driver(thread_ranks(small, 2, 2)).generate(0, prompt_of(40), 24) == expected


@pytest.mark.parametrize("form", ["4 bits, zero points", "3 bits, zero points"])
def test_a_head_with_zero_points(tmp_path: Path, form: str) -> None:
    pytest.importorskip("compressed_tensors")
    from transformers import AutoModelForCausalLM, CompressedTensorsConfig

    whole, small = save(tmp_path / "whole", tied=True, dtype=torch.float32), tmp_path / "small"
    assert quantize(whole, small, *FORMS[form], HEAD) == 0
    settings = {"quantization_config": CompressedTensorsConfig(dequantize=True)}
    model = AutoModelForCausalLM.from_pretrained(small, dtype=torch.float32, **settings).eval()
    expected = reference_greedy(model, prompt_of(40), 24)
    assert generate(small) == expected
    assert Driver(thread_ranks(small, 2)).generate(0, prompt_of(40), 24) == expected


@pytest.mark.parametrize("name", ["chatglm", "gpt-neox", "gemma2", "internlm2", "bloom", "phi"])
def test_families(tmp_path: Path, name: str) -> None:
    """Whatever they call both; of Gemma they are one, which its embeddings' scale and its softcap stay outside of."""
    save_row(tmp_path / "whole", ROWS[name])
    assert quantize(tmp_path / "whole", tmp_path / "small", *BOTH) == 0
    options = ROWS[name].runner
    config = read_model_config(tmp_path / "small")
    assert config.tensors.table is not None
    assert config.tensors.linears["head"].quantized
    logits = []
    for folder in (tmp_path / "whole", tmp_path / "small"):
        driver = Driver(build_runner(engine_config(folder, **options)))
        driver.enter(0, prompt_of(30))
        driver.step({0: 30})
        logits.append(driver.logits[0].float())
    before, after = logits
    assert 0 < float((after - before).norm() / before.norm()) < 0.05


def test_adapters_beside_them(tmp_path: Path) -> None:
    small = tmp_path / "small"
    assert quantize(save(tmp_path / "whole", tied=True), small, *BLOCKS, *BOTH) == 0
    plain = as_plain(small, tmp_path / "plain")
    targets = targets_of(plain)
    weights = read_adapter(write_adapter(tmp_path / "adapter", targets), targets, max_rank=16, dtype=torch.float32)
    tokens = []
    for folder in (plain, small):
        driver = Driver(build_runner(engine_config(folder, enable_lora=True)))
        driver.place_adapter(2, weights)
        driver.adapter = 2
        tokens.append(driver.generate(0, prompt_of(40), 16))
    assert tokens[0] == tokens[1] != generate(small)[:16]


def test_a_table_that_is_the_output_matrix_too_is_read(tmp_path: Path) -> None:
    """Nobody writes such a one that transformers reads; the rule names the class, and the table has 4 bits."""
    small, tied = tmp_path / "small", tmp_path / "tied"
    assert quantize(save(tmp_path / "whole", tied=True), small, *BLOCKS, HEAD) == 0
    stored, config = tensors_of(small), config_of(small)
    tensors = {name: tensor for name, tensor in stored.items() if not name.startswith(("lm_head.", TABLE))}
    tensors |= {name.replace("lm_head", TABLE): stored[name] for name in stored if name.startswith("lm_head.")}
    group = config["quantization_config"]["config_groups"]["group_0"]
    config["quantization_config"]["config_groups"]["group_1"] = {**group, "targets": ["Embedding"]}
    tied.mkdir()
    (tied / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    save_file(tensors, tied / "model.safetensors")
    head = stored_linears(small)["lm_head"]
    plain = as_plain(small, tmp_path / "plain")
    numbers = {**tensors_of(plain), f"{TABLE}.weight": head.contiguous()}
    save_file(numbers, plain / "model.safetensors")
    expected = generate(plain)
    assert generate(tied) == expected
    assert Driver(thread_ranks(tied, 2)).generate(0, prompt_of(40), 24) == expected
    assert Driver(thread_ranks(tied, 1, 2)).generate(0, prompt_of(40), 24) == expected


def test_what_is_said_and_counted(tmp_path: Path) -> None:
    whole, small = save(tmp_path / "whole", tied=True), tmp_path / "small"
    assert quantize(whole, small, *BLOCKS, *BOTH) == 0
    config = read_model_config(small)
    detail = describe(config.tensors.found_in(open_checkpoint(small).names))
    assert detail.startswith("22 linear layers are quantised in the checkpoint")
    assert "; the embedding table is, too (compressed-tensors, 8 bits)" in detail
    runner = build_runner(engine_config(small, dtype="bfloat16"))
    estimated = weight_bytes(read_model_config(small), "bfloat16")
    assert estimated == pytest.approx(runner.memory_plan.weights, rel=0.3)
    assert estimated < weight_bytes(read_model_config(whole), "bfloat16") / 2


def test_perplexity_is_that_of_all_that_is_quantised(tmp_path: Path) -> None:
    """What transformers makes of the result."""
    pytest.importorskip("compressed_tensors")
    whole = save_with_tokenizer(tmp_path / "whole", "llama", torch.float32, **SIZES, tie_word_embeddings=True)
    texts = write_texts(tmp_path / "texts.jsonl")
    flags = ("--bit", "3", "--quant_algo", "gptq", "--calib_data_file", str(texts))
    found = {}
    for name, more in (("layers", ()), ("all", BOTH)):
        small = tmp_path / name
        assert quantize(whole, small, *flags, *more) == 0
        found[name] = json.loads((small / REPORT_NAME).read_text())["calibration"]["perplexity_after"]
        lines = [json.loads(line)["text"] for line in texts.read_text().splitlines()]
        options = QuantizeOptions(algorithm="gptq")
        samples = prepare(whole, options, model="m", max_shard_bytes=1 << 30, texts=lines).samples
        assert samples is not None
        model, loss, count = load_reference(small), 0.0, 0
        for ids in (samples.token_ids[index].tolist() for index in samples.judges):
            logits = reference_logits(model, ids)[:-1].log_softmax(-1)
            loss -= float(logits[range(len(ids) - 1), ids[1:]].sum())
            count += len(ids) - 1
        assert found[name] == pytest.approx(math.exp(loss / count), rel=1e-3)
    assert found["all"] != pytest.approx(found["layers"], rel=1e-3)


def test_killed_it_goes_on_and_ends_with_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SYNC_SECONDS", 0.0)
    whole, flags = save(tmp_path / "whole", tied=True), (*BLOCKS, *BOTH)
    calls = disk_calls(lambda: quantize(whole, tmp_path / "made", *flags))
    for place in range(calls // 6, calls, calls // 6):
        output = tmp_path / str(place)
        killed_at(place, lambda output=output: quantize(whole, output, *flags))  # type: ignore[misc]
        assert quantize(whole, output, *flags) == 0
        assert content(output) == content(tmp_path / "made"), place


def test_a_split_folder_gives_the_same(tmp_path: Path) -> None:
    whole = save(tmp_path / "whole", tied=True)
    assert split(["-tp", "2", "--model", str(whole), "--output_dir", str(tmp_path / "parts")]) == 0
    for name, source in (("a", whole), ("b", tmp_path / "parts")):
        assert quantize(source, tmp_path / name, *BLOCKS, *BOTH) == 0
    one, other = tensors_of(tmp_path / "a"), tensors_of(tmp_path / "b")
    assert one.keys() == other.keys()
    assert all(same_bytes(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (("--quant_embedding",), 1, "with --quant_embedding give --quant_lm_head, or leave both out"),
        ((HEAD, "--ignore", "lm_head"), 1, "--ignore leaves lm_head as it is, and --quant_lm_head does not"),
        ((*BOTH, "--asymmetric"), 2, "--quant_embedding does not go with --asymmetric"),
    ],
)
def test_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], code: int, said: str
) -> None:
    whole = save(tmp_path / "whole", tied=True)
    if code == 1:
        assert quantize(whole, tmp_path / "small", *flags) == 1
    else:
        with pytest.raises(SystemExit):
            quantize(whole, tmp_path / "small", *flags)
    assert said in capsys.readouterr().err
    assert not (tmp_path / "small").exists()


def test_a_head_whose_rows_are_normalised_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_row(tmp_path / "whole", ROWS["baichuan"])
    assert quantize(tmp_path / "whole", tmp_path / "small", HEAD) == 1
    assert "lm_head is used with each row divided by its length" in capsys.readouterr().err


def test_a_text_model_beside_a_vision_tower_is_untied_too() -> None:
    """Either says of Qwen2-VL that it is tied."""
    fields = {"text_config": {"tie_word_embeddings": True, "hidden_size": 8}, "tie_word_embeddings": False}
    text = {"tie_word_embeddings": False, "hidden_size": 8}
    assert untied(fields) == {"text_config": text, "tie_word_embeddings": False}
    assert untied({"text_config": {"a": 1}}) == {"text_config": {"a": 1}, "tie_word_embeddings": False}
    assert untied({"hidden_size": 8}) == {"hidden_size": 8, "tie_word_embeddings": False}
