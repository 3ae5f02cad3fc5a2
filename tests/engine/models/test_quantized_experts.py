"""``--quant`` of models with mixtures of experts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_support.families import ROWS, save_row
from engine_support.family_proof import Comparison
from engine_support.runner_driver import prompt_of
from engine_support.tiny_models import engine_config, reference_logits

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
