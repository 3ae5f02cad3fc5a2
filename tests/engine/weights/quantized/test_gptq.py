"""GPTQ checkpoints: the numbers that are stored, and what a model of them says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.pairwise import in_turn
from engine_support.quantized_checkpoints import (
    SIZES,
    edited,
    gptq,
    gptq_tensors,
    read_linears,
    round_weight,
    save_quantized,
)
from engine_support.runner_driver import Driver, prompt_of
from engine_support.tiny_models import engine_config, reference_greedy
from safetensors.torch import load_file

from blade_llm.check.memory_fit import check_memory_fit
from blade_llm.models.errors import ModelFilesError, UnsupportedModelError
from blade_llm.models.implementation import read_model_config
from blade_llm.models.quantized.reading import read_quantized
from blade_llm.runner import build_runner
from blade_llm.spec.quantization.weights import GptqForm
from blade_llm.spec.slices import Slice
from blade_llm.spec.tensors import TensorPart

FORMS: dict[str, dict[str, Any]] = {
    "4 bits": {"bits": 4, "group_size": 16},
    "4 bits without g_idx": {"bits": 4, "group_size": 16, "groups": False},
    "4 bits, zero points": {"bits": 4, "group_size": 16, "symmetric": False},
    "4 bits, zero points of version 2": {"bits": 4, "group_size": 16, "symmetric": False, "version": 2},
    "4 bits, whole rows": {"bits": 4, "group_size": -1},
    "act-order": {"bits": 4, "group_size": 16, "symmetric": False, "act_order": True},
    "8 bits": {"bits": 8, "group_size": 16},
    "3 bits": {"bits": 3, "group_size": 32, "symmetric": False},
    "2 bits": {"bits": 2, "group_size": 16, "symmetric": False},
}


def save(folder: Path, family: str, form: dict[str, Any], **overrides: Any) -> Any:
    config, quantize = gptq(**form)
    return save_quantized(folder, family, config, quantize, **{**SIZES, **overrides})


@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
def test_the_numbers_are_those_that_were_stored(tmp_path: Path, form: dict[str, Any]) -> None:
    save(tmp_path, "qwen2", form)
    expected = load_file(tmp_path / "plain" / "model.safetensors")
    found = read_linears(tmp_path)
    assert len(found) > 20
    for module, weight in found.items():
        assert torch.equal(weight, expected[f"{module}.weight"]), module


@pytest.mark.parametrize(("form", "family"), in_turn(list(FORMS), ["llama", "qwen2"]))
def test_greedy_tokens_are_those_of_transformers(tmp_path: Path, form: str, family: str) -> None:
    reference = save(tmp_path, family, FORMS[form])
    driver = Driver(build_runner(engine_config(tmp_path)))
    prompt = prompt_of(40)
    assert driver.generate(0, prompt, 24) == reference_greedy(reference, prompt, 24)


def test_a_quantised_head(tmp_path: Path) -> None:
    reference = save(tmp_path, "llama", {"bits": 4, "group_size": 16, "head": True})
    assert "lm_head.qweight" in load_file(tmp_path / "model.safetensors")
    driver = Driver(build_runner(engine_config(tmp_path)))
    assert driver.generate(0, prompt_of(40), 12) == reference_greedy(reference, prompt_of(40), 12)


def test_rules_for_some_layers(tmp_path: Path) -> None:
    """GPTQModel's ``dynamic``: one module with other bits, one left alone, of one stack."""
    config, four = gptq(4, 16)
    _, eight = gptq(8, 32, symmetric=False)

    def quantize(module: str, weight: torch.Tensor) -> Any:
        if module.endswith("v_proj"):
            return None
        return (eight if "layers.1." in module and module.endswith("gate_proj") else four)(module, weight)

    rules = {r"-:.*v_proj": {}, r"+:.*\.1\..*gate_proj": {"bits": 8, "group_size": 32}}
    reference = save_quantized(tmp_path, "qwen2", {**config, "dynamic": rules}, quantize, **SIZES)
    driver = Driver(build_runner(engine_config(tmp_path)))
    assert driver.generate(0, prompt_of(40), 12) == reference_greedy(reference, prompt_of(40), 12)


def test_the_type_where_nothing_is_said(tmp_path: Path) -> None:
    """16 bits, of which a CPU makes bf16 where it is fast in that."""
    save(tmp_path, "qwen2", {"bits": 4, "group_size": 16})
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**fields, "dtype": None, "torch_dtype": None}))
    assert read_model_config(tmp_path).dtype == "float16"


def test_the_type_where_it_is_32_bits(tmp_path: Path) -> None:
    """Quantised weights have kernels for bf16; the check plans for the same type."""
    save(tmp_path, "qwen2", {"bits": 4, "group_size": 32})
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**fields, "dtype": "float32"}))
    config = engine_config(tmp_path, dtype="auto")
    assert build_runner(config).dtype_name == "bfloat16"
    assert check_memory_fit(config, limit=1 << 34).detail.startswith("bfloat16: ")


def test_some_modules_of_each_block(tmp_path: Path) -> None:
    """``modules_in_block_to_quantize``: others are plain, and are not looked for in another form."""
    config, quantize = gptq(4, 16)
    named = [["self_attn.q_proj", "self_attn.k_proj"], ["mlp.down_proj"]]

    def some(module: str, weight: torch.Tensor) -> Any:
        return quantize(module, weight) if module.endswith(("q_proj", "k_proj", "down_proj")) else None

    fields = {**config, "modules_in_block_to_quantize": named}
    reference = save_quantized(tmp_path, "qwen2", fields, some, **SIZES)
    quantised = [part.module for part in read_model_config(tmp_path).tensors.linear_parts() if part.form is not None]
    assert len(quantised) == 3 * 3
    driver = Driver(build_runner(engine_config(tmp_path)))
    assert driver.generate(0, prompt_of(40), 12) == reference_greedy(reference, prompt_of(40), 12)


def test_the_last_integer_may_be_filled_in_part() -> None:
    """59 outputs of 3 bits, and 31 inputs in the same way."""
    rounded = round_weight(torch.randn(64, 32), 3, 16, symmetric=False)
    whole = gptq_tensors("layer", rounded)
    stored = {
        name: tensor if name.endswith(("qzeros", "g_idx")) else tensor[:, :59].contiguous()
        for name, tensor in whole.items()
    }

    class Source:
        def stored(self, name: str, block: Slice | None = None) -> torch.Tensor:
            return stored[name]

    form = GptqForm(3, 16, act_order=False, zero_offset=1)
    shapes = {tensor.name: tensor.shape for tensor in form.stored("layer", 59, 31)}
    assert all(tuple(stored[name].shape) == shape for name, shape in shapes.items())
    weight = read_quantized(Source(), TensorPart("layer.weight", (59, 31), form=form))  # type: ignore[arg-type]
    assert torch.equal(weight.dequantize(), rounded.weight()[:59, :31])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"scales": None}, r"1 of \d+ tensors are missing: model.layers.0.mlp.down_proj.scales"),
        ({"qweight": None}, r"1 of \d+ tensors are missing: model.layers.0.mlp.down_proj.qweight"),
        (
            {"scales": torch.ones(3, 64).half()},
            r"down_proj.scales is \[3, 64\] in model.safetensors, config.json asks for \[6, 64\]",
        ),
        (
            {"qweight": torch.zeros(12, 64)},
            r"down_proj.qweight is F32 in model.safetensors: it must be I32 or U32",
        ),
        ({"scales": torch.full((6, 64), torch.nan).half()}, r"down_proj.scales' holds NaN or infinite numbers"),
        (
            {"g_idx": torch.zeros(96, dtype=torch.int32)},
            r"down_proj.g_idx does not divide 96 inputs into groups of 16",
        ),
    ],
)
def test_tensors_that_are_missing_or_wrong_are_named(
    tmp_path: Path, changes: dict[str, torch.Tensor | None], reason: str
) -> None:
    save(tmp_path, "qwen2", {"bits": 4, "group_size": 16})
    edited(tmp_path, **changes)
    with pytest.raises(ModelFilesError, match=reason):
        build_runner(engine_config(tmp_path))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"bits": 5}, "GPTQ with 5 bits ('quantization_config') is not supported; 2, 3, 4, 8 are"),
        (
            {"quant_method": "bitsandbytes"},
            "kind 'bitsandbytes' ('quantization_config') are not supported; those of",
        ),
        ({"quant_method": None}, "kind None ('quantization_config') are not supported; those of gptq"),
        ({"checkpoint_format": "marlin"}, "'checkpoint_format' 'marlin' is not supported; 'gptq' and 'gptq_v2' are"),
        ({"group_size": 0}, "'group_size' must be positive, or -1 for whole rows, not 0"),
        ({"bits": "4"}, "'quantization_config': Expected `int`, got `str` - at `$.bits`"),
        ({"dynamic": {"(": {}}}, "'dynamic' has '(', no regular expression"),
        ({"dynamic": {"-:" + "a" * 2001: {}}}, "'dynamic' has '-:aaaa"),
    ],
)
def test_settings_that_are_not_read_are_named(tmp_path: Path, fields: dict[str, Any], reason: str) -> None:
    config, quantize = gptq(4, 16)
    save_quantized(tmp_path, "qwen2", {**config, **fields}, quantize, **SIZES)
    with pytest.raises((ModelFilesError, UnsupportedModelError)) as caught:
        read_model_config(tmp_path)
    assert reason in str(caught.value)
