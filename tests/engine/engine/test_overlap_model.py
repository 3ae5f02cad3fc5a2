"""Overlap on a real model: the torch runner works later, behind plans that were made without its tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_support.async_device import AsyncDevice
from engine_support.fake_core import core_of
from engine_support.load import Visitor, assert_same, loads, play
from engine_support.tiny_models import engine_config, save_model
from hypothesis import HealthCheck, given, settings

from blade_llm.runner import build_runner
from blade_llm.runner.torch_runner import TorchRunner

VOCABULARY, EOS, MAX_MODEL_LEN, BLOCKS = 199, 1, 160, 14


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> TorchRunner:
    folder: Path = tmp_path_factory.mktemp("qwen2")
    save_model(folder, "qwen2")
    return build_runner(
        engine_config(folder, max_num_seqs=5, max_model_len=MAX_MODEL_LEN, max_batch_tokens=48, max_kv_blocks=BLOCKS)
    )


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(load=loads(vocabulary=VOCABULARY, max_visitors=8, max_tokens=30))
def test_the_model_samples_the_same_tokens_with_and_without_overlap(runner: TorchRunner, load: list[Visitor]) -> None:
    """fp32; 14 blocks for up to five requests of up to seven blocks each, so that some are preempted."""
    limits: dict[str, Any] = {
        "num_blocks": BLOCKS,
        "max_num_seqs": 5,
        "max_model_len": MAX_MODEL_LEN,
        "max_batch_tokens": 48,
    }
    without = play(core_of(runner, overlap=False, eos_token_ids=(EOS,), **limits), load)
    device = AsyncDevice(runner)
    overlapping = play(core_of(device, clock=device.clock, eos_token_ids=(EOS,), **limits), load)
    assert_same(load, without, overlapping)
