"""Each family's Triton path on a GPU: the logits and tokens of transformers, as on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_support.families import ROWS, save_row
from engine_support.family_proof import SCENARIOS, Comparison
from engine_support.tiny_models import engine_config

from blade_llm.runner import build_runner

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.mark.parametrize("name", list(ROWS))
def test_fp32(name: str, tmp_path: Path) -> None:
    reference = save_row(tmp_path, ROWS[name])
    # Logits of every position are recorded while a step is computed, which a replayed graph does not do.
    runner = build_runner(engine_config(tmp_path, disable_cuda_graph=True, **ROWS[name].runner))
    assert runner.device.type == "cuda"
    compare = Comparison(runner, reference)
    for scenario in SCENARIOS.values():
        scenario(compare)
