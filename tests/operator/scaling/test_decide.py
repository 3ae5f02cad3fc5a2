"""Decisions: bounds, bad numbers, clocks, flapping, zero; on a virtual clock."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blade_operator.scaling.capacity import Capacity
from blade_operator.scaling.decide import FURTHER, LONGEST, Decision, decide
from blade_operator.scaling.load import Load
from blade_operator.scaling.memory import Memory
from blade_operator.scaling.policy import Policy, Speed, Targets

FIXED, PER_REQUEST, PER_TOKEN = 0.024, 0.00018, 0.00013
PROMPT, COMPLETION = 1000.0, 200.0
SLO = Policy(1, 20, targets=Targets(2.0, 0.1))
CONCURRENCY = Policy(1, 20, concurrency=10.0)
AT = 1.0e9


def measured(at: float, rate: float, ready: int, starting: int = 0) -> Load:
    """As engines with these numbers have it."""
    busy = min(0.98, rate / max(1, ready) * (PER_TOKEN * PROMPT + PER_REQUEST * COMPLETION))
    tpot = FIXED / (1.0 - busy)
    return Load(
        at=at,
        ready=ready,
        starting=starting,
        running=rate * COMPLETION * tpot,
        arrivals=rate,
        recent_arrivals=rate,
        prompt_tokens=rate * PROMPT,
        completion_tokens=rate * COMPLETION,
        ttft=0.3 / (1.0 - busy),
        tpot=1.3 * tpot,
        mean_tpot=tpot,
    )


def run(policy: Policy, rates: list[float], engines: int, memory: Memory | None = None) -> tuple[list[int], Memory]:
    """Decisions each ten seconds, whose engines are there at once."""
    counts, kept = [], memory or Memory()
    at = kept.at or AT
    for rate in rates:
        at += 10
        decision, kept = decide(policy, engines, measured(at, rate, engines), kept)
        engines = decision.engines
        counts.append(engines)
    return counts, kept


def settled(policy: Policy = SLO, rate: float = 10.0, engines: int = 4) -> tuple[int, Memory]:
    counts, memory = run(policy, [rate] * 100, engines)
    return counts[-1], memory


def test_a_steady_load_gets_engines_enough_and_no_more() -> None:
    engines, memory = settled()
    assert engines == 3  # of 0.166 seconds a request with TPOT below 100 ms at the promised percentile
    assert memory.capacity.is_known
    counts, _ = run(SLO, [10.0] * 60, engines, memory)
    assert set(counts) == {3}


def test_a_higher_load_gets_more_at_once_and_a_lower_one_fewer_after_the_delay() -> None:
    engines, memory = settled()
    [high], memory = run(SLO, [25.0], engines, memory)
    assert high > engines
    counts, _ = run(SLO, [10.0] * 60, high, memory)
    assert counts[: int(SLO.down_delay / 10) - 1] == [high] * (int(SLO.down_delay / 10) - 1)
    assert counts[-1] < high


def test_further_engines_go_after_a_part_of_the_delay_until_one_comes() -> None:
    policy = replace(SLO, down=Speed(engines=20, percent=100))
    engines, memory = settled(policy, rate=40.0, engines=9)
    counts, memory = run(policy, [30.0] * 20, engines, memory)
    fewer, part = counts[-1], int(FURTHER * policy.down_delay / 10)
    assert fewer < engines
    assert memory.falling
    counts, lower = run(policy, [15.0] * 12, fewer, memory)
    assert counts[part - 2] == fewer
    assert counts[-1] < fewer
    assert lower.falling
    # After an engine has come the whole delay counts again.
    [more], memory = run(policy, [60.0], fewer, memory)
    assert more > fewer
    counts, _ = run(policy, [15.0] * 11, more, memory)
    assert min(counts) == more


@pytest.mark.parametrize("targets", [Targets(2.0, 0.1), Targets(2.0)], ids=["TPOT", "no TPOT"])
def test_an_engine_whose_steps_are_learnt_to_cost_nothing_by_themselves(targets: Targets) -> None:
    policy = replace(SLO, targets=targets)
    engines, memory = settled(policy)
    memory = replace(memory, capacity=replace(memory.capacity, weights=(0.0, 0.5, 0.5)))
    load = replace(measured(memory.at + 10, 10.0, engines), tpot=None, mean_tpot=None)  # nothing more is learnt
    for ready in (engines, 0):
        decision, _ = decide(policy, engines, replace(load, ready=ready), memory)
        assert 1 <= decision.engines <= policy.most


def test_requests_that_pile_up_get_engines_before_latencies_say_so() -> None:
    engines, memory = settled()
    load = measured(memory.at + 10, 10.0, engines)
    assert decide(SLO, engines, load, memory)[0].engines == engines
    piled_up = replace(load, running=4 * load.running)
    assert decide(SLO, engines, piled_up, memory)[0].engines > engines


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.floats(0.0, 500.0), min_size=1, max_size=40),
    st.integers(0, 5),
    st.integers(0, 30),
    st.integers(0, 60),
    st.booleans(),
)
def test_bounds_are_always_kept(rates: list[float], least: int, more: int, engines: int, by_slo: bool) -> None:
    policy = replace(SLO if by_slo else CONCURRENCY, least=least, most=least + more)
    counts, _ = run(policy, rates, engines)
    assert all(policy.least <= count <= policy.most for count in counts)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize(
    "name",
    ["running", "queued", "arrivals", "recent_arrivals", "prompt_tokens", "completion_tokens", "ttft", "tpot"],
)
@pytest.mark.parametrize("policy", [SLO, CONCURRENCY])
def test_numbers_that_are_not_sound_change_nothing(policy: Policy, name: str, bad: float) -> None:
    engines, memory = settled(policy)
    load = replace(measured(memory.at + 10, 0.0, engines), **cast(dict[str, Any], {name: bad}))
    decision, after = decide(policy, engines + 2, load, memory)
    assert decision == Decision(engines + 2, "the load's numbers are not sound", engines + 2)
    assert after == memory


def test_latencies_that_nobody_measured_do_not_scale_down() -> None:
    load = replace(measured(AT, 10.0, 6), ttft=None, tpot=None, mean_tpot=None)
    memory, engines = Memory(), 6
    for step in range(100):
        decision, memory = decide(SLO, engines, replace(load, at=AT + 10 * step), memory)
        engines = decision.engines
    assert engines == 6


@pytest.mark.parametrize("jump", [-86_400.0, -30.0, LONGEST + 120.0, 86_400.0, 1.0e9])
@pytest.mark.parametrize("policy", [SLO, replace(SLO, least=0, idle_to_zero=60.0), CONCURRENCY])
def test_a_clock_that_jumps_takes_no_engine_before_the_delay(policy: Policy, jump: float) -> None:
    _, memory = settled(policy, rate=30.0, engines=9)
    memory = replace(memory, at=memory.at + 10)
    at, engines, counts = memory.at + jump, 9, []
    for _ in range(int(policy.down_delay / 10) - 1):
        decision, memory = decide(policy, engines, measured(at, 0.5, engines), memory)
        engines = decision.engines
        counts.append(engines)
        at += 10
    assert min(counts) >= 9


def test_an_operator_that_was_away_goes_on_where_it_was() -> None:
    engines, memory = settled()
    decision, after = decide(SLO, engines, measured(memory.at + 300, 10.0, engines), memory)
    assert decision.engines == engines
    assert after.capacity.fixed == pytest.approx(memory.capacity.fixed, rel=0.01)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.sampled_from([SLO, CONCURRENCY]))
def test_directions_change_at_most_once_within_the_delay(seed: int, policy: Policy) -> None:
    generator = random.Random(seed)
    rates = [max(0.1, generator.choice((5.0, 12.0, 30.0)) * generator.lognormvariate(0, 0.5)) for _ in range(200)]
    counts, _ = run(policy, rates, 4)
    changes = [
        (10 * index, after > before)
        for index, (before, after) in enumerate(zip([4, *counts], counts, strict=False))
        if after != before
    ]
    for start, _ in changes:
        ups = [up for at, up in changes if start <= at < start + policy.down_delay]
        assert sum(one != other for one, other in pairwise(ups)) <= 1


@settings(deadline=None, max_examples=60)
@given(st.floats(0.5, 80.0), st.floats(1.0, 3.0))
def test_more_load_never_needs_fewer(rate: float, more: float) -> None:
    for policy in (SLO, CONCURRENCY):
        _, memory = KNOWN[policy.concurrency]
        low, _ = decide(policy, 3, measured(memory.at + 10, rate, 3), memory)
        high, _ = decide(policy, 3, measured(memory.at + 10, more * rate, 3), memory)
        assert low.needed <= high.needed


def test_targets_that_no_engine_reaches_do_not_take_all_there_are() -> None:
    policy = replace(SLO, targets=Targets(0.1, 0.01))
    counts, memory = run(policy, [6.0] * 200, 3)
    decision, _ = decide(policy, counts[-1], measured(memory.at + 10, 6.0, counts[-1]), memory)
    assert "no number of engines is fast enough" in decision.reason
    assert counts[-1] < policy.most


def test_engines_that_start_count() -> None:
    engines, memory = settled()
    load = replace(measured(memory.at + 10, 20.0, engines), running=300.0)
    wanted = decide(SLO, engines, load, memory)[0].engines
    assert engines < wanted < engines + SLO.up.step(engines)
    again, _ = decide(SLO, wanted, replace(load, starting=wanted - engines), memory)
    assert again.engines == wanted


def test_nothing_is_taken_away_while_engines_start() -> None:
    engines, memory = settled(rate=30.0, engines=9)
    for step in range(1, 60):
        load = measured(memory.at + 10, 1.0, engines, starting=1)
        decision, memory = decide(SLO, engines, load, memory)
        assert decision.engines >= engines, step


def test_speeds_are_kept() -> None:
    policy = replace(SLO, up=Speed(2, 0, 60.0), down=Speed(1, 0, 60.0))
    engines, memory = settled(policy)
    counts, memory = run(policy, [60.0] * 6, engines, memory)
    assert counts == [engines + 2] * 6
    counts, _ = run(policy, [0.5] * 200, counts[-1], memory)
    steps = [index for index, (one, two) in enumerate(pairwise(counts)) if one != two]
    assert all(one - two == 1 for one, two in pairwise(counts) if one != two)
    assert all(later - sooner >= 6 for sooner, later in pairwise(steps))


@pytest.mark.parametrize("policy", [SLO, CONCURRENCY])
def test_zero_and_one_cannot_flap(policy: Policy) -> None:
    idle = 300.0
    policy = replace(policy, least=0, idle_to_zero=idle)
    memory, engines, changes, at = Memory(), 1, [], AT
    for step in range(1, 720):
        at += 10
        there = 1.0 if step % 40 == 0 else 0.0  # one request in 400 seconds
        load = Load(at=at, ready=engines, running=there * engines, queued=there * (1 - engines), arrivals=there / 60)
        decision, memory = decide(policy, engines, load, memory)
        if decision.engines != engines:
            changes.append((at, decision.engines))
        engines = decision.engines
    assert {count for _, count in changes} == {0, 1}
    for (down, count), (up, _) in pairwise(changes):
        if count == 1:
            assert up - down >= idle


def test_a_request_wakes_a_service_that_sleeps() -> None:
    policy = replace(SLO, least=0, idle_to_zero=60.0)
    asleep, memory = decide(policy, 0, Load(AT, ready=0), Memory())
    assert asleep.engines == 0
    assert decide(policy, 0, Load(AT + 10, ready=0, queued=1.0), memory)[0].engines == 1


def test_before_anything_is_known_a_missed_target_asks_for_more() -> None:
    load = replace(measured(AT, 10.0, 2), ttft=5.0)
    decision, memory = decide(SLO, 2, load, Memory())
    assert memory.capacity != Capacity()
    assert not memory.capacity.is_known
    assert decision.engines == 4
    assert decision.reason.startswith("TTFT 5000 ms of 2000 ms")


KNOWN = {policy.concurrency: settled(policy) for policy in (SLO, CONCURRENCY)}
