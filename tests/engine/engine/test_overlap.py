"""Host and device at work at the same time: order of launches, no idle device, and tokens as without."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
from engine_support.async_device import AsyncDevice, Event
from engine_support.examples import examples
from engine_support.fake_core import EOS, core_of
from engine_support.fake_runner import FakeRunner, FakeSlot, tokens_alone
from engine_support.images import encoding
from engine_support.load import MOST_IMAGE_TOKENS, Result, Visitor, assert_same, loads, play
from engine_support.ranks import Ranks
from engine_support.scripted_drafter import ScriptedDrafter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blade_llm.engine.core import EngineCore
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.plan import Runner

SETTINGS = settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
VOCABULARY = 23
MAX_MODEL_LEN = 120
ADAPTERS = {0: 0, 1: 11, 2: 22}


def visitors(count: int, prompt: int, max_tokens: int, **sampling: Any) -> list[Visitor]:
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, seed=0, **{"ignore_eos": True, **sampling})
    return [Visitor(str(i), 0, [(i + 7 * j) % VOCABULARY for j in range(prompt)], params) for i in range(count)]


def overlapped(load: list[Visitor], **device: Any) -> tuple[AsyncDevice, EngineCore]:
    """``load`` served by an asynchronous device; eight slots."""
    runner = FakeRunner(num_blocks=200, max_num_seqs=8, max_model_len=400, vocab_size=VOCABULARY)
    wrapped = AsyncDevice(runner, **device)
    core = core_of(wrapped, num_blocks=200, max_num_seqs=8, max_model_len=400, clock=wrapped.clock)
    play(core, load)
    return wrapped, core


def test_each_forward_is_launched_before_the_tokens_before_it_and_each_sampling_after_them() -> None:
    device, _ = overlapped(visitors(8, 10, 50))
    at = {event: index for index, event in enumerate(device.timeline)}
    steps = max(event.step for event in device.timeline)
    assert steps == 49  # one step a token
    for step in range(steps):
        assert at[Event("forward", step + 1)] < at[Event("result", step)] < at[Event("sampling", step + 1)]


def test_the_device_never_waits_for_the_host() -> None:
    device, _ = overlapped(visitors(8, 20, 50), host_seconds=0.004)
    assert device.idle == []


def test_the_device_never_waits_while_requests_come_and_go() -> None:
    load = [
        Visitor(
            str(i), 3 * i, [i % VOCABULARY] * (5 + 3 * i), SamplingParams(max_tokens=20 + i, ignore_eos=True, seed=i)
        )
        for i in range(30)
    ]
    device, core = overlapped(load, host_seconds=0.004)
    assert core.scheduler.stats().generation_tokens_total == sum(20 + i for i in range(30))
    assert device.idle == []


def test_a_busy_host_does_not_fall_back_to_waiting() -> None:
    """It needs nearly as long as the device: results may be there before the next launch, which still goes first."""
    device, _ = overlapped(visitors(8, 20, 50), host_seconds=0.0055)
    steps = max(event.step for event in device.timeline)
    assert device.now < 1.15 * steps * 0.011
    at = {event: index for index, event in enumerate(device.timeline)}
    assert all(at[Event("forward", step + 1)] < at[Event("result", step)] for step in range(steps))


def test_a_late_stop_costs_one_token() -> None:
    """Every output ends with a stop; the host learns of it one step late and throws one token away."""
    stops = tuple(range(0, VOCABULARY, 5))
    load = visitors(8, 20, 300, stop_token_ids=stops)
    runner = FakeRunner(num_blocks=200, max_num_seqs=8, max_model_len=400, vocab_size=VOCABULARY)
    device = AsyncDevice(runner)
    core = core_of(device, num_blocks=200, max_num_seqs=8, max_model_len=400, clock=device.clock)
    results = play(core, load)
    assert {result.finish_reason for result in results.values()} == {"stop"}
    wanted = sum(len(result.token_ids) + 1 for result in results.values())
    sampled = sum(chunk.sample for plan in runner.plans for chunk in plan.chunks)
    assert sampled == wanted + len(load)


def core_under_load(
    runner: Runner, limits: dict[str, Any], *, overlap: bool = True, clock: Callable[[], float] = monotonic
) -> EngineCore:
    """Two adapters take turns in one slot, and images in an encoder cache that hardly holds two."""
    options: dict[str, Any] = {"overlap": overlap, "clock": clock, "images": encoding(ENCODER_CACHE)}
    return core_of(runner, max_model_len=MAX_MODEL_LEN, max_adapters=1, **options, **limits)


ENCODER_CACHE = MOST_IMAGE_TOKENS + 4
"""Image tokens."""
LIMITS = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(8, 16),
        "max_num_seqs": st.integers(1, 6),
        "max_batch_tokens": st.integers(3, 60),
        "enable_prompt_cache": st.booleans(),
    }
)


def fake_runner(limits: dict[str, Any], kind: type[FakeRunner] = FakeRunner) -> FakeRunner:
    runner = kind(
        limits["num_blocks"],
        limits["max_num_seqs"],
        MAX_MODEL_LEN,
        VOCABULARY,
        max_batch_tokens=limits["max_batch_tokens"],
    )
    runner.contents = ADAPTERS
    runner.tower.capacity = ENCODER_CACHE
    return runner


def assert_as_alone(load: list[Visitor], results: dict[str, Result]) -> None:
    for visitor in load:
        output, reason, stop = tokens_alone(
            visitor.prompt,
            visitor.sampling,
            vocab_size=VOCABULARY,
            eos_token_ids=(EOS,),
            max_model_len=MAX_MODEL_LEN,
            adapter=ADAPTERS[visitor.adapter],
            images=visitor.images,
        )
        got = results[visitor.name]
        if visitor.leaves_after is None:
            assert got == Result(output, reason, stop)
        else:
            assert got.token_ids == output[: len(got.token_ids)]


@SETTINGS
@given(load=loads(vocabulary=VOCABULARY, special=True), limits=LIMITS, host=st.floats(0.0, 0.02))
def test_tokens_are_the_same_with_and_without_overlap(load: list[Visitor], limits: dict[str, Any], host: float) -> None:
    """Arrivals, aborts, stops, priorities, preemption, shared prefixes, adapters and images."""
    without = play(core_under_load(fake_runner(limits), limits, overlap=False), load)
    device = AsyncDevice(fake_runner(limits), host_seconds=host)
    overlapping = play(core_under_load(device, limits, clock=device.clock), load)
    assert_same(load, without, overlapping)
    assert_as_alone(load, overlapping)


class DraftingRunner(FakeRunner):
    """Draft tokens right more or less often."""

    def tokens_for(self, slot: FakeSlot, num_draft_tokens: int) -> int:
        return 1 + hash((len(slot.token_ids), self.num_steps)) % (num_draft_tokens + 1)


@SETTINGS
@given(
    load=loads(vocabulary=VOCABULARY, special=True),
    limits=LIMITS,
    drafts=st.integers(0, 5),
    stages=st.sampled_from([1, 2, 3]),
)
def test_tokens_are_the_same_with_draft_tokens_and_pipeline_stages(
    load: list[Visitor], limits: dict[str, Any], drafts: int, stages: int
) -> None:
    """Each rank reads the plans from msgpack; up to three steps are in flight, a sampling brings 1..drafts+1 tokens."""
    ranks = Ranks([fake_runner(limits, DraftingRunner) for _ in range(stages)])
    device = AsyncDevice(ranks, stages=stages)
    features = {**limits, "pipeline_stages": stages, "drafter": ScriptedDrafter(drafts)}
    answers = play(core_under_load(device, features, clock=device.clock), load)
    assert_as_alone(load, answers)


def test_decodes_with_draft_tokens_stay_in_one_step() -> None:
    """Those that come one by one do not fall into parts that take turns, each of which leaves the device half empty."""
    device = AsyncDevice(DraftingRunner(num_blocks=200, max_num_seqs=8, max_model_len=400, vocab_size=VOCABULARY))
    core = core_of(
        device,
        num_blocks=200,
        max_num_seqs=8,
        max_model_len=400,
        clock=device.clock,
        drafter=ScriptedDrafter(2),
    )
    load = [dataclasses.replace(each, comes_at=at) for at, each in enumerate(visitors(8, 10, 90))]
    sizes = []
    launch = device.launch_forward
    device.launch_forward = lambda plan, masks=None: sizes.append(len(plan.chunks)) or launch(plan)  # type: ignore[method-assign,func-returns-value]
    play(core, load)
    running = sizes[sizes.index(8) :]
    assert running == sorted(running, reverse=True)
    assert len(sizes) <= 8 + 90


@pytest.mark.parametrize("stages", [2, 4])
def test_pipeline_stages_are_kept_busy(stages: int) -> None:
    ranks = Ranks([FakeRunner(200, 8, 400, VOCABULARY) for _ in range(stages)])
    device = AsyncDevice(ranks, stages=stages, host_seconds=0.0001, sampling_seconds=0.0001)
    core = core_of(
        device, num_blocks=200, max_num_seqs=8, max_model_len=400, pipeline_stages=stages, clock=device.clock
    )
    in_flight = []
    for visitor in visitors(8, 10, 50):
        core.scheduler.add(visitor.request())
    while core.has_work:
        core.step()
        in_flight.append(len(device.undelivered))
    assert max(in_flight) == stages
    # Each of the 50 tokens of 8 slots is one of 8 / stages slots in a step that keeps a stage busy for 10 ms / stages.
    assert device.now < 1.2 * 50 * 0.010
    assert ranks.longest_plan < 2000


def test_a_plan_is_small_on_the_wire() -> None:
    ranks = Ranks([FakeRunner(3000, 256, 400, VOCABULARY, verify=False) for _ in range(2)])
    core = core_of(ranks, num_blocks=3000, max_num_seqs=256, max_model_len=400, max_batch_tokens=8192)
    load = visitors(256, 4, 60)
    for visitor in load:
        core.scheduler.add(visitor.request())
    core.step()
    ranks.longest_plan = 0
    while core.has_work:
        core.step()
    assert ranks.longest_plan < 256 * 20
