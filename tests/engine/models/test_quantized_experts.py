"""Models with mixtures of experts: ``--quant``, and checkpoints that have them quantised."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.compressed_tensors import compressed
from engine_support.families import ROWS, save_row
from engine_support.family_proof import Comparison
from engine_support.quantized_checkpoints import float8, gptq, quantize_folder
from engine_support.runner_driver import Driver, prompt_of
from engine_support.thread_ranks import thread_ranks
from engine_support.tiny_models import engine_config, load_reference, reference_greedy, reference_logits

from blade_llm.check.memory_fit import check_memory_fit
from blade_llm.check.rank_memory import Gpu
from blade_llm.kernels.experts.native import NativeExperts
from blade_llm.kernels.experts.torch import TorchExperts
from blade_llm.kernels.linear.native import is_available
from blade_llm.layers.moe import MoE
from blade_llm.models.implementation import read_model_config
from blade_llm.models.memory import weight_bytes
from blade_llm.runner import build_runner


@pytest.mark.parametrize("name", ["mixtral", "qwen2-moe", "qwen3-moe"])
def test_quantised_experts_compute_nearly_the_same_in_less_memory(name: str, tmp_path: Path) -> None:
    """The median over positions: rounding sends a few tokens to other experts."""
    reference = save_row(tmp_path, ROWS[name])
    tokens = prompt_of(75)
    expected = reference_logits(reference, tokens)
    errors, weights = {}, {}
    for quant in ("none", "int8", "int4"):
        runner = build_runner(engine_config(tmp_path, dtype="bfloat16", quant=quant, deterministic=True))
        weights[quant] = runner.memory_plan.weights
        compare = Comparison(runner, reference)
        compare.enter(0, tokens)
        compare.step({0: 75})
        logits = torch.stack([compare.computed[0][position] for position in range(75)])
        errors[quant] = float(((logits - expected).norm(dim=1) / expected.norm(dim=1)).median())
    assert errors["int8"] < 0.1
    assert errors["int8"] < errors["int4"] < 0.6
    assert weights["none"] > weights["int8"] > weights["int4"]


CHECKPOINTS = {
    "gptq": gptq(4, 32, symmetric=False),
    "8 bits": compressed({"num_bits": 8, "type": "int", "strategy": "channel"}, "int-quantized"),
    "fp8": compressed({"type": "float", "strategy": "block", "block_structure": [32, 32]}, "float-quantized"),
    "fp8, rounded": float8((32, 32)),
}


def save_mixture(folder: Path, name: str, form: str) -> None:
    """Of sizes that groups of 32 divide."""
    row = ROWS[name]
    sizes = {"intermediate_size": 64}
    if name != "mixtral":
        sizes["moe_intermediate_size"] = 64
    if name == "qwen2-moe":
        sizes["shared_expert_intermediate_size"] = 64
    save_row(folder / "plain", replace(row, fields={**row.fields, **sizes}), torch.float16)
    config, quantize = CHECKPOINTS[form]
    modules = {part.module for part in read_model_config(folder / "plain").tensors.linear_parts()}
    quantize_folder(
        folder / "plain",
        folder / "quantised",
        config,
        lambda at, weight: quantize(at, weight) if at in modules else None,
    )


@pytest.mark.parametrize("form", CHECKPOINTS)
@pytest.mark.parametrize("name", ["mixtral", "qwen2-moe", "deepseek-v3"])
def test_experts_of_a_quantised_checkpoint_stay_as_they_are(name: str, form: str, tmp_path: Path) -> None:
    """In memory, which the plan counts; they compute what their numbers say, of activations that are rounded as the
    checkpoint says."""
    save_mixture(tmp_path, name, form)
    folders = tmp_path / "plain", tmp_path / "quantised"
    runners = [build_runner(engine_config(folder, dtype="bfloat16")) for folder in folders]
    layers = [
        [layer.mlp for layer in runner.model.layers if isinstance(layer.mlp, MoE)]  # type: ignore[attr-defined]
        for runner in runners
    ]
    for plain, quantised in zip(*layers, strict=True):
        assert isinstance(quantised.experts, NativeExperts if is_available() else TorchExperts)
        share = 0.35 if form == "gptq" else 0.6
        assert quantised.experts.nbytes < share * plain.experts.nbytes
        if plain.shared is not None:
            assert quantised.shared.down.nbytes < share * plain.shared.down.nbytes
    estimated = [weight_bytes(read_model_config(folder), "bfloat16") for folder in folders]
    measured = [runner.memory_plan.weights for runner in runners]
    assert measured[1] < measured[0]
    assert estimated[0] - estimated[1] == pytest.approx(measured[0] - measured[1], rel=0.1)
    exact = [build_runner(engine_config(folder)) for folder in folders]
    logits = [logits_of(runner) for runner in (*exact, *runners)]
    errors = [float((own - wide).norm() / wide.norm()) for wide, own in zip(logits[:2], logits[2:], strict=True)]
    rounded = form == "fp8, rounded"
    assert errors[1] < (8 if rounded else 2) * errors[0] < 0.4  # rounding may send a token to other experts
    assert (torch.dist(*logits[:2]) > 5e-3 * logits[0].norm()) == rounded
    if not rounded:
        expected = reference_greedy(load_reference(folders[0]), prompt_of(40), 12)
        assert Driver(exact[1]).generate(0, prompt_of(40), 12) == expected


def logits_of(runner: Any) -> torch.Tensor:
    driver = Driver(runner)
    driver.enter(0, prompt_of(40))
    driver.step({0: 40})
    return driver.logits[0].float()


@pytest.mark.parametrize("experts", [False, True], ids=["parts", "whole"])
@pytest.mark.parametrize("name", ["mixtral", "deepseek-v3"])
def test_ranks_have_their_part_of_quantised_experts(name: str, experts: bool, tmp_path: Path) -> None:
    save_mixture(tmp_path, name, "gptq")
    reference = load_reference(tmp_path / "plain")
    expected = reference_greedy(reference, prompt_of(40), 12)
    runner = thread_ranks(tmp_path / "quantised", 2, enable_expert_parallel=experts)
    assert Driver(runner).generate(0, prompt_of(40), 12) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["gptq", "fp8, rounded"])
def test_a_gpu_has_experts_as_floats_and_its_plan_knows(form: str, tmp_path: Path) -> None:
    """Routed ones, but not what is shared or before them."""
    save_mixture(tmp_path, "qwen2-moe", form)
    plain, quantised = (read_model_config(tmp_path / folder) for folder in ("plain", "quantised"))
    experts = sum(linear.size for place, linear in plain.tensors.linears.items() if ".experts." in place)
    assert experts > plain.tensors.linear_size / 3
    on_gpu = weight_bytes(quantised, "bfloat16", on_gpu=True)
    assert 2 * experts < on_gpu < weight_bytes(plain, "bfloat16", on_gpu=True)
    assert weight_bytes(quantised, "bfloat16") < on_gpu - experts / 2
    detail = check_memory_fit(engine_config(tmp_path / "quantised", dtype="bfloat16"), gpu=Gpu(1 << 30, 1 << 30)).detail
    assert f"weights {on_gpu} bytes" in detail
