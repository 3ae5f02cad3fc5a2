"""The simulator of autoscaling: its engine against closed forms, its traces, its world and the others' rules."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import pytest
from benchmarks.scaling.engine import SETTLED, Engine, Profile, Request
from benchmarks.scaling.oracle import best, most_rate
from benchmarks.scaling.policies import hpa, knative
from benchmarks.scaling.traces import CONVERSATION, TRACES, Trace
from benchmarks.scaling.world import Promise, Result, World

from blade_operator.scaling.load import Load

PROFILE = Profile(fixed=0.02, per_request=0.001, per_token=0.0001, start=30.0, budget=1000, max_seqs=4)
PROMISE = Promise(2.0, 0.1, 0.95)


def test_one_request_takes_its_prompts_chunks_and_then_a_step_for_each_token() -> None:
    request = Request(0.0, prompt=2500, completion=11)
    engine = Engine(PROFILE, 0.0)
    engine.add(request, 0.0)
    assert engine.advance(100.0) == [request]
    # 2.5 steps of a whole chunk, as prompts progress evenly; the last, half full one takes as long for its half
    assert request.ttft == pytest.approx(2.5 * (0.02 + 0.1), rel=0.05)
    assert request.tpot == pytest.approx(0.02 + 0.001)
    assert engine.load == 0
    assert engine.event == math.inf


def test_decodes_share_steps() -> None:
    requests = [Request(0.0, prompt=1, completion=101) for _ in range(4)]
    engine = Engine(PROFILE, 0.0)
    for request in requests:
        engine.add(request, 0.0)
    engine.advance(100.0)
    assert [each.tpot for each in requests] == pytest.approx([0.02 + 4 * 0.001] * 4, rel=0.02)


def test_no_more_requests_than_places_are_computed() -> None:
    engine = Engine(PROFILE, 0.0)
    for _ in range(6):
        engine.add(Request(0.0, prompt=10, completion=50), 0.0)
    assert (engine.load, engine.running) == (6, 4)
    assert len(engine.advance(100.0)) == 6


def test_tpot_under_a_steady_load_is_that_of_the_closed_form() -> None:
    """1 = fixed / TPOT + what prompts and decodes add, which is what the capacity model learns."""
    profile = Profile(fixed=0.02, per_request=0.0002, per_token=0.0001, start=30.0)
    rate, prompt, completion = 4.0, 500, 200
    engine, found = Engine(profile, 0.0), []
    for index in range(2000):
        at = index / rate
        found += engine.advance(at)
        engine.add(Request(at, prompt, completion), at)
    busy = rate * (profile.per_token * prompt + profile.per_request * completion)
    tpot = statistics.fmean(each.tpot for each in found[200:])
    assert tpot == pytest.approx(profile.fixed / (1 - busy), rel=0.05)


@pytest.mark.parametrize("make", TRACES)
def test_a_trace_is_the_same_each_time_and_has_the_rate_that_it_says(make: Callable[[int], Trace]) -> None:
    trace = make(7)
    one, two = trace.requests(), trace.requests()
    assert [(each.at, each.prompt) for each in one] == [(each.at, each.prompt) for each in two]
    expected = sum(trace.rate(float(at)) for at in range(int(trace.seconds)))
    assert len(one) == pytest.approx(expected, rel=0.05)
    assert one[-1].at < trace.seconds
    assert [each.at for each in make(8).requests()[:3]] != [each.at for each in one[:3]]


def test_lengths_have_the_published_median_and_mean() -> None:
    trace = Trace("lengths", 1, 4000.0, lambda _: 5.0)
    requests = trace.requests()
    assert statistics.median(each.prompt for each in requests) == pytest.approx(1020, rel=0.05)
    assert statistics.fmean(each.prompt for each in requests) == pytest.approx(1155, rel=0.05)
    assert statistics.median(each.completion for each in requests) == pytest.approx(129, rel=0.05)
    assert statistics.fmean(each.completion for each in requests) == pytest.approx(211, rel=0.1)
    assert trace.lengths == CONVERSATION


def test_replica_hours_are_of_engines_that_start_answer_and_drain() -> None:
    requests = [Request(SETTLED + 1.0, prompt=10, completion=10)]
    steps = iter([3, 3, 3, 3, 1])
    result = World(PROFILE, requests, 1, PROMISE).run(
        lambda load, engines: next(steps, 1) if load.at >= SETTLED else 1, SETTLED + 100.0
    )
    # An engine that drains counts until the next decision.
    assert result.engine_seconds == 10.0 * (5 * 3 + 5 * 1)
    assert result.counts == [(0.0, 1), (SETTLED, 3), (SETTLED + 40.0, 1)]
    assert result.attainment(PROMISE) == 1.0


def test_without_an_engine_requests_are_held_and_wait_for_the_first() -> None:
    requests = [Request(SETTLED + 1.0, prompt=10, completion=10)]
    world = World(PROFILE, requests, 0, PROMISE)
    result = world.run(lambda load, engines: 1 if load.queued or engines else 0, SETTLED + 20.0)
    assert requests[0].ttft == pytest.approx(9.0 + PROFILE.start, abs=0.1)
    assert result.attainment(PROMISE) == 0.0


@pytest.mark.parametrize(
    ("counts", "most"),
    [
        ([2, 3, 4, 5], 0),
        ([2, 3, 2], 1),
        ([2, 3, 2, 3, 2], 3),
    ],
)
def test_reversals_are_counted_between_changes_of_one_window(counts: list[int], most: int) -> None:
    changes = [(SETTLED + 10.0 * index, count) for index, count in enumerate(counts)]
    assert Result([], counts=changes).most_reversals(120.0) == most
    assert Result([], counts=changes).most_reversals(5.0) == 0


def test_the_best_run_is_the_cheapest_that_keeps_the_promise() -> None:
    def ran(hours: float, late: int) -> Result:
        requests = [
            Request(SETTLED, 1, 1, SETTLED + (9.0 if index < late else 0.0), SETTLED + 9.0) for index in range(20)
        ]
        return Result(requests, 3600 * hours)

    cheap, kept, dear = ran(1.0, 4), ran(2.0, 1), ran(3.0, 0)
    assert best([dear, cheap, kept], PROMISE) is kept
    assert best([cheap, ran(0.5, 9)], PROMISE) is cheap


def test_an_engine_can_do_as_much_as_keeps_it_within_the_targets() -> None:
    rate = most_rate(PROFILE, 500.0, 100.0, 900.0, PROMISE)
    assert PROFILE.fixed / (1 - rate * (500 * PROFILE.per_token + 100 * PROFILE.per_request)) <= 0.1 * 1.001
    assert most_rate(PROFILE, 500.0, 100.0, 900.0, Promise(4.0, 0.2, 0.95)) > rate


def test_the_autoscaler_of_kubernetes_tolerates_a_tenth_and_waits_five_minutes_downwards() -> None:
    scale = hpa(10.0, 1, 20)
    assert scale(Load(0.0, ready=4, running=43.0), 4) == 4
    assert scale(Load(15.0, ready=4, running=80.0), 4) == 8
    assert scale(Load(30.0, ready=8, running=10.0), 8) == 8
    assert scale(Load(331.0, ready=8, running=10.0), 8) == 1


def test_knative_panics_at_twice_the_engines_and_then_takes_none_away() -> None:
    scale = knative(10.0, 1, 20)
    assert scale(Load(0.0, ready=2, running=7.0), 2) == 1
    assert scale(Load(10.0, ready=2, running=28.0), 2) == 4
    assert scale(Load(20.0, ready=4, running=1.0), 4) == 4
    assert scale(Load(140.0, ready=4, running=1.0), 4) == 1
