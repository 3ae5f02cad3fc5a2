"""How long stages of a pipeline have nothing to do, on a virtual clock; the first uses the host's time, as on CPUs."""

from __future__ import annotations

from typing import Any

import pytest
from engine_support.async_device import AsyncDevice
from engine_support.fake_core import core_of
from engine_support.fake_runner import FakeRunner
from engine_support.load import Visitor, play
from engine_support.ranks import Ranks

from blade_llm.engine.core import EngineCore
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.plan import StepPlan

VOCABULARY = 23
WEIGHTS_SECONDS, TOKEN_SECONDS = 0.020, 0.0005
"""Of a step in all stages together: to read the weights, and of each token on top."""


def step_seconds(plan: StepPlan) -> float:
    return WEIGHTS_SECONDS + TOKEN_SECONDS * plan.num_tokens


def engine(stages: int, batches: int | None = None) -> tuple[AsyncDevice, EngineCore]:
    """16 slots; host and sampling take a hundredth of a stage's step."""
    ranks = Ranks([FakeRunner(400, 16, 2000, VOCABULARY, max_batch_tokens=2048) for _ in range(stages)])
    overhead = WEIGHTS_SECONDS / stages / 100
    device = AsyncDevice(
        ranks,
        forward_seconds=step_seconds,
        host_seconds=overhead,
        sampling_seconds=overhead,
        stages=stages,
        on_host=True,
    )
    limits: dict[str, Any] = {"num_blocks": 400, "max_num_seqs": 16, "max_model_len": 2000, "max_batch_tokens": 2048}
    return device, core_of(device, pipeline_stages=batches or stages, clock=device.clock, **limits)


def visitor(index: int, prompt: int, max_tokens: int, comes_at: int = 0) -> Visitor:
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, seed=index, ignore_eos=True)
    return Visitor(str(index), comes_at, [(index + 7 * i) % VOCABULARY for i in range(prompt)], params)


@pytest.mark.parametrize("stages", [2, 4])
def test_stages_work_nearly_all_the_time(stages: int) -> None:
    device, core = engine(stages)
    play(core, [visitor(index, 10, 100) for index in range(16)])
    assert device.worked / device.now >= 0.93


@pytest.mark.parametrize("stages", [2, 4])
def test_stages_work_while_requests_come_and_go(stages: int) -> None:
    """Steps stay as full as they can be: of those that come one by one no part is left behind in steps of its own."""
    device, core = engine(stages)
    play(core, [visitor(index, 20, 60 + index, comes_at=2 * index) for index in range(48)])
    tokens = sum(60 + index for index in range(48))
    assert device.worked / device.now >= 0.9
    ideal = tokens * (WEIGHTS_SECONDS / (16 / stages) + TOKEN_SECONDS) / stages
    assert device.now <= 1.25 * ideal


@pytest.mark.parametrize("stages", [2, 4])
def test_a_prompt_is_divided_among_the_stages(stages: int) -> None:
    """Its first token does not wait for every stage in turn."""
    device, core = engine(stages)
    play(core, [visitor(0, 1600, 1)])
    in_turn = WEIGHTS_SECONDS + 1600 * TOKEN_SECONDS
    # A pipeline of n stages and n parts of the prompt takes 2n - 1 times a stage's part of it.
    expected = (2 * stages - 1) / stages**2
    assert device.now <= 1.1 * expected * in_turn + WEIGHTS_SECONDS


def test_more_batches_than_stages_hide_the_host() -> None:
    """Each is smaller, and one more waits in front of a stage that is through with its own."""
    devices = []
    for batches in (2, 3):
        device, core = engine(2, batches)
        play(core, [visitor(index, 10, 100) for index in range(12)])
        devices.append(device)
    assert devices[1].worked / devices[1].now > devices[0].worked / devices[0].now
