"""``activation_scale_ub``: the largest magnitude that FBGEMM's scales of tokens are made for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.compressed_tensors import F8, compressed
from engine_support.quantized_checkpoints import SIZES, save_quantized
from engine_support.runner_driver import Driver, prompt_of
from engine_support.thread_ranks import thread_ranks
from engine_support.tiny_models import engine_config, load_reference, reference_greedy, reference_logits
from torch import Tensor, nn

from blade_llm.kernels.linear import pack_quantized
from blade_llm.kernels.linear.activations import Activations
from blade_llm.kernels.linear.clamped import ClampedLinear
from blade_llm.kernels.linear.float8 import Float8Linear, Float8Weight
from blade_llm.models.errors import ModelFilesError, UnsupportedModelError
from blade_llm.models.implementation import read_model_config
from blade_llm.models.quantized.summary import describe
from blade_llm.runner import build_runner
from blade_llm.weights.checkpoint import open_checkpoint

BOUND = 1.25


def rounded(x: Tensor) -> Tensor:
    """As FBGEMM's documentation of ``quantize_fp8_per_row`` has it: the row's largest magnitude is at most the bound,
    and what is beyond e4m3's largest value then becomes that."""
    scale = x.abs().amax(-1, keepdim=True).clamp(max=BOUND) / 448
    scale = scale.where(scale > 0, torch.tensor(1.0))
    return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale


def save(folder: Path, **config: Any) -> Path:
    """A model of FBGEMM's with these fields more."""
    weights = {**F8, "strategy": "channel"}
    save_quantized(folder, "qwen2", *compressed(weights, "float-quantized"), **SIZES)
    fields = json.loads((folder / "config.json").read_text())
    fields["quantization_config"] = {"quant_method": "fbgemm_fp8", **config}
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def logits_of(folder: Path) -> Tensor:
    driver = Driver(build_runner(engine_config(folder)))
    driver.enter(0, prompt_of(40))
    driver.step({0: 40})
    return driver.logits[0].float()


def bounded_reference(folder: Path) -> tuple[Any, list[bool]]:
    """transformers' model with the equations in front of its layers, and whether inputs of these were beyond."""
    model, beyond = load_reference(folder / "plain"), []

    def before(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        beyond.append(bool((inputs[0].abs() > BOUND).any()))
        return (rounded(inputs[0]), *inputs[1:])

    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name != "lm_head":
            module.register_forward_pre_hook(before)
    return model, beyond


def test_what_is_served_rounds_so(tmp_path: Path) -> None:
    folder = save(tmp_path / "bounded", activation_scale_ub=BOUND)
    model, beyond = bounded_reference(folder)
    expected = reference_logits(model, prompt_of(40))[-1]
    assert any(beyond)
    found = logits_of(folder)
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=2e-3)
    tokens = reference_greedy(model, prompt_of(40), 12)
    assert Driver(build_runner(engine_config(folder))).generate(0, prompt_of(40), 12) == tokens
    assert Driver(thread_ranks(folder, 1, 2)).generate(0, prompt_of(40), 12) == tokens
    free = logits_of(save(tmp_path / "free"))
    assert (free - found).abs().max() > 0.05
    config = read_model_config(folder)
    said = describe(config.tensors.found_in(open_checkpoint(folder).names))
    assert "in 21 of them to fp8 by token, at most 1.25" in said


def test_one_scale_a_weight_too(tmp_path: Path) -> None:
    """The method ``fp8`` with tokens' own scales."""
    folder = tmp_path / "model"
    save_quantized(folder, "qwen2", *compressed({**F8, "strategy": "tensor"}, "float-quantized"), **SIZES)
    fields = json.loads((folder / "config.json").read_text())
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "activation_scale_ub": BOUND}
    (folder / "config.json").write_text(json.dumps({**fields, "quantization_config": config}))
    expected = reference_logits(bounded_reference(folder)[0], prompt_of(40))[-1]
    torch.testing.assert_close(logits_of(folder), expected, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_clamped_inputs_have_the_bound_for_their_scale(dtype: torch.dtype) -> None:
    x = (torch.randn(5, 64, generator=torch.Generator().manual_seed(2)) * 2).to(dtype)
    x[3], x[4, 0] = x[3] / 8, float("inf")
    weight = Float8Weight(torch.eye(64).to(torch.float8_e4m3fn), torch.ones(1, 1), (64, 64), Activations("fp8"))
    bounded = Activations("fp8", most=BOUND)
    expected = bounded.rounded(x)
    assert torch.equal(expected[:4], rounded(x.float())[:4])
    assert expected.isfinite().all()
    packed = pack_quantized(replace(weight, activations=bounded), dtype=dtype)
    assert isinstance(packed, ClampedLinear)
    found = packed(x)
    torch.testing.assert_close(found, expected.to(dtype), rtol=0, atol=0)
    reference = Float8Linear(replace(weight, activations=bounded), None)(x)
    assert torch.equal(found, reference)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"activation_scale_ub": 0}, "'activation_scale_ub' must be a number above 0, not 0"),
        ({"activation_scale_ub": "much"}, "Expected `float | null`"),
    ],
)
def test_no_bound(tmp_path: Path, config: dict[str, Any], said: str) -> None:
    folder = save(tmp_path / "model", **config)
    with pytest.raises(ModelFilesError, match=said.replace("|", r"\|")):
        read_model_config(folder)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"activation_scheme": "static"}, "'activation_scale_ub' with 'activation_scheme' 'static' is not supported"),
        ({"weight_block_size": [32, 32]}, "'activation_scale_ub' with 'weight_block_size' is not supported"),
    ],
)
def test_bounds_of_other_scales_are_refused(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    folder = save(tmp_path / "model", quant_method="fp8", activation_scale_ub=BOUND, **more)
    with pytest.raises(UnsupportedModelError, match=said):
        read_model_config(folder)
