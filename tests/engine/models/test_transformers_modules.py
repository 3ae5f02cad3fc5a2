"""Models that transformers' own modules compute: which are, which are refused, and that the engine around them is the
same. What they compute is in ``test_families.py``."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.families import ROWS, Row, save_row
from engine_support.family_proof import SCENARIOS, Comparison
from engine_support.runner_driver import Driver, prompt_of
from engine_support.tiny_models import SHAPE, engine_config
from hub_support.tiny_model import make_model
from safetensors.torch import load_file, save_file

from blade_llm.check.memory_fit import check_memory_fit
from blade_llm.check.model import check_model
from blade_llm.config import Task
from blade_llm.engine.build import build_core
from blade_llm.kernels import native
from blade_llm.models import implementation
from blade_llm.models.config import load_model_config
from blade_llm.models.errors import ModelFilesError, UnsupportedModelError
from blade_llm.models.families import registry
from blade_llm.models.families.registry import FAMILIES
from blade_llm.models.implementation import read_model_config, through_transformers
from blade_llm.models.memory import weight_bytes
from blade_llm.models.transformers_modules.modules import Projection
from blade_llm.runner import build_runner
from blade_llm.spec.modules import ModulesSpec

LLAMA = ROWS["llama-modules"]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("llama")
    return folder, save_row(folder, LLAMA)


def forget_llama(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no family was registered for it."""
    others = {name: family for name, family in FAMILIES.items() if name != "LlamaForCausalLM"}
    for module in (registry, implementation):
        monkeypatch.setattr(module, "FAMILIES", others)


def test_auto_takes_modules_where_no_family_is_registered(
    llama: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder, _ = llama
    assert not through_transformers(read_model_config(folder))
    forget_llama(monkeypatch)
    assert through_transformers(read_model_config(folder))
    with pytest.raises(UnsupportedModelError, match="'LlamaForCausalLM' is not supported; use a model of one of these"):
        read_model_config(folder, "blade")
    with caplog.at_level(logging.INFO):
        build_core(engine_config(folder))
    assert "LlamaForCausalLM is served through transformers" in caplog.text


def test_the_engine_knows_the_same_of_a_model_both_ways(llama: tuple[Path, Any]) -> None:
    ours, theirs = load_model_config(llama[0]), read_model_config(llama[0], "transformers")
    assert theirs.kv == ours.kv
    assert theirs.tensors.expected() == ours.tensors.expected()
    assert (theirs.dtype, theirs.eos_token_ids, theirs.bos_token_id) == (
        ours.dtype,
        ours.eos_token_ids,
        ours.bos_token_id,
    )
    for name in ("vocab_size", "hidden_size", "num_layers", "num_heads", "max_position_embeddings"):
        assert getattr(theirs, name) == getattr(ours, name), name
    assert theirs.decoder.windows == tuple(layer.attention.window for layer in ours.decoder.layers)
    assert theirs.decoder.widest >= ours.decoder.widest
    for quant in ("none", "int4"):
        assert weight_bytes(theirs, "bfloat16", quant) == weight_bytes(ours, "bfloat16", quant)


def test_both_ways_hold_as_many_bytes(llama: tuple[Path, Any]) -> None:
    """Apart from rotary angles, which ours has in tables, and norms, which ours does not count."""
    ours, theirs = (build_runner(engine_config(llama[0], model_impl=impl)).model for impl in ("blade", "transformers"))
    tables = sum(table.cos.nbytes + table.sin.nbytes for table in ours.rotary)
    norms, frequencies = 7 * 64, 2 * 8
    assert theirs.nbytes == ours.nbytes - tables + 4 * (norms + frequencies)


def test_linear_layers_are_the_engines_own(llama: tuple[Path, Any]) -> None:
    """Quantised and packed like those of a family, and the same tokens come out."""
    model = build_runner(engine_config(llama[0], model_impl="transformers")).model
    modules = [*model._decoder.modules(), *model._head.modules()]
    assert not [module for module in modules if isinstance(module, torch.nn.Linear)]
    assert len([module for module in modules if isinstance(module, Projection)]) == 7 * 3 + 1
    if native.library() is None:
        return
    tokens, sizes = [], []
    for impl in ("blade", "transformers"):
        runner = build_runner(engine_config(llama[0], model_impl=impl, quant="int8", dtype="bfloat16"))
        driver = Driver(runner)
        tokens.append(driver.generate(0, prompt_of(40), 8))
        sizes.append(runner.model.nbytes)
        if impl == "transformers":
            packed = [m for m in runner.model._decoder.modules() if isinstance(m, Projection)]
            assert all(m.linear.packed is not None for m in packed)
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("extra", [False, True])
def test_tied_weights_are_one(extra: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also of a checkpoint that has both names."""
    reference = save_row(tmp_path, Row("Llama", "", {"tie_word_embeddings": True}))
    tensors = load_file(tmp_path / "model.safetensors")
    assert "lm_head.weight" not in tensors
    if extra:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        save_file(tensors, tmp_path / "model.safetensors")
    runner = build_runner(engine_config(tmp_path, model_impl="transformers"))
    assert "not used" not in caplog.text
    model = runner.model
    [head] = [m for m in model._head.modules() if isinstance(m, Projection)]
    embedding = model._decoder.embed_tokens.weight
    assert head.linear.weight is None or head.linear.weight.data_ptr() == embedding.data_ptr()
    SCENARIOS["chunked_prefill"](Comparison(runner, reference))


def test_a_checkpoint_of_the_layers_alone(tmp_path: Path) -> None:
    reference = save_row(tmp_path, ROWS["gpt2-modules"])
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        {name.removeprefix("transformer."): each for name, each in tensors.items()}, tmp_path / "model.safetensors"
    )
    runner = build_runner(engine_config(tmp_path, model_impl="transformers"))
    SCENARIOS["chunked_prefill"](Comparison(runner, reference))


def test_wrong_tensors_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_row(tmp_path, LLAMA)
    config = engine_config(tmp_path, model_impl="transformers")
    tensors = load_file(tmp_path / "model.safetensors")
    path = tmp_path / "model.safetensors"
    save_file({**tensors, "model.layers.0.mlp.router.weight": torch.ones(3, 3)}, path)
    build_runner(config)
    assert "1 tensor(s) are not used: model.layers.0.mlp.router.weight" in caplog.text
    save_file({**tensors, "model.norm.weight": torch.ones(63)}, path)
    with pytest.raises(
        ModelFilesError, match=r"model.norm.weight is \[63\] in model.safetensors, config.json asks for \[64\]"
    ):
        build_runner(config)
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    save_file(tensors, path)
    with pytest.raises(ModelFilesError, match=r"1 of 30 tensors are missing: model.layers.1.self_attn.k_proj.weight"):
        build_runner(config)


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "attention of its own": (
        "Falcon",
        {"alibi": False, "new_decoder_architecture": True},
        "cannot build it with attention",
    ),
    "ALiBi": ("Bloom", {}, "takes no 'position_ids'"),
    "MLA": ("DeepseekV3", {"n_routed_experts": 4}, "latent attention"),
    "experts": ("Mixtral", {}, "has a mixture of experts"),
    "state": ("Mamba", {"state_size": 4}, "recurrent layers"),
    "sinks": ("GptOss", {"head_dim": 16}, "mixture of experts|'s_aux'"),
    "encoder": ("Bart", {}, "encoder or cross attention"),
    "rope by length": (
        "Llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 3.0}},
        "is not supported through transformers: its angles depend on",
    ),
    "later tokens": ("ModernBertDecoder", {}, "not supported"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_served_is_refused_by_name(case: str, tmp_path: Path) -> None:
    import transformers

    family, fields, reason = REFUSED[case]
    config = getattr(transformers, f"{family}Config")(**{**SHAPE, **fields})
    config.architectures = [f"{family}ForCausalLM"]
    config.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match=f"{family}.*({reason})") as caught:
        read_model_config(tmp_path, "transformers")
    assert str(tmp_path / "config.json") in str(caught.value)


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('it was run')")
    fields = {**SHAPE, "model_type": "evil", "architectures": ["EvilForCausalLM"]}
    fields["auto_map"] = {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.EvilForCausalLM"}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(UnsupportedModelError, match=r"'EvilForCausalLM' is not supported.*'auto_map'\) is never run"):
        read_model_config(tmp_path)


@pytest.mark.parametrize("name", ["quantization_config", "compression_config"])
def test_quantised_checkpoints_are_refused(name: str, llama: tuple[Path, Any], tmp_path: Path) -> None:
    fields = json.loads((llama[0] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**fields, name: {"quant_method": "gptq"}}))
    with pytest.raises(UnsupportedModelError, match="quantised checkpoints"):
        read_model_config(tmp_path, "transformers")


def test_random_weights(llama: tuple[Path, Any]) -> None:
    runner = build_runner(engine_config(llama[0], model_impl="transformers", load_format="dummy"))
    assert len(Driver(runner).generate(0, prompt_of(20), 4)) == 4


def test_the_check_says_so(tmp_path: Path) -> None:
    folder = make_model(tmp_path, model_type="qwen2")
    assert "served through transformers" not in check_model(folder).detail
    item = check_model(folder, impl="transformers")
    assert item.status != "FAILED"
    assert "ForCausalLM, served through transformers, " in item.detail
    fit = check_memory_fit(engine_config(folder, model_impl="transformers"), limit=8 << 30)
    assert fit.status == "PASS"


def test_windows_are_those_of_the_layers(tmp_path: Path) -> None:
    save_row(tmp_path, ROWS["cohere2-modules"])
    decoder = read_model_config(tmp_path, "transformers").decoder
    assert isinstance(decoder, ModulesSpec)
    assert decoder.windows == (24, 24, 24, 0)


def test_soft_caps_are_those_of_the_layers(tmp_path: Path) -> None:
    save_row(tmp_path, ROWS["gemma2-modules"])
    decoder = read_model_config(tmp_path, "transformers").decoder
    assert isinstance(decoder, ModulesSpec)
    assert decoder.softcaps == (3.0, 3.0, 3.0)
    assert decoder.windows == (24, 0, 24)


@pytest.mark.parametrize("task", ["embed", "score"])
def test_other_tasks_are_refused_by_name(task: Task, llama: tuple[Path, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match=f"--task {task} is not served through transformers"):
        read_model_config(llama[0], "transformers", task)


def test_a_task_is_for_the_layers_that_serve_it(llama: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``auto`` embeddings are of a family; without one the supported architectures are named."""
    assert not read_model_config(llama[0], "auto", "embed").decoder.head
    forget_llama(monkeypatch)
    with pytest.raises(UnsupportedModelError, match=r"use a model of one of these: .*BertModel"):
        read_model_config(llama[0], "auto", "embed")
