"""An engine core for server tests: the fake runner at a pace at which clients can leave, with a way to make it fail."""

from __future__ import annotations

import time

from engine_support.api_core import HIDDEN, ApiCore
from engine_support.fake_runner import FakeForward, FakeRunner

from blade_llm.config import EngineConfig
from blade_llm.engine.core import EngineCore, EngineInfo
from blade_llm.models.errors import NotEnoughMemoryError
from blade_llm.scheduling.plan import StepPlan

EOS = 2
STEP_SECONDS = 0.004
POISON = 383
"""A prompt that begins with this token id makes the runner raise."""
TOO_SMALL = 7
"""``max_kv_blocks`` at which the build fails as it does without memory."""


class PacedRunner(FakeRunner):
    def launch_forward(self, plan: StepPlan) -> FakeForward:
        if any(new.token_ids[0] == POISON for new in plan.new_rows):
            raise RuntimeError("poisoned prompt")
        time.sleep(STEP_SECONDS)
        return super().launch_forward(plan)


def build_core(config: EngineConfig) -> EngineCore:
    """``engine_support.paced_core:build_core``"""
    if config.max_kv_blocks == TOO_SMALL:
        raise NotEnoughMemoryError("one request needs 128 blocks; raise --max_kv_blocks to 128")
    runner = PacedRunner(
        num_blocks=config.max_kv_blocks or 1024,
        max_num_seqs=config.max_num_seqs,
        max_model_len=config.max_model_len or 2048,
        vocab_size=97,
        max_batch_tokens=config.max_batch_tokens,
        verify=False,
    )
    info = EngineInfo(
        model=config.served_names[0],
        max_model_len=runner.max_model_len,
        device="cpu",
        dtype="float32",
        hidden_size=HIDDEN,
        revision=config.revision,
        memory=runner.memory_plan,
        timings={"weights": 0.0},
    )
    return ApiCore.from_config(config, runner, info, num_blocks=runner.num_blocks, eos_token_ids=(EOS,))
