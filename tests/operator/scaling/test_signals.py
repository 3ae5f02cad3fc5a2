"""From what routers say to a load: rates of counters, what is left out, and when nothing is known."""

from __future__ import annotations

import math
from typing import Any

import pytest

from blade_operator.scaling.signals import STALE, Engines, Measured, Samples, measure
from blade_protocol.signals import Percentiles, RouterSignals, ServiceSignals

START = 1_700_000_000.0
ENGINES = Engines(ready=2, starting=1)


def router(seconds: float = 0.0, **fields: Any) -> RouterSignals:
    """A router that runs since long, ``seconds`` after the start of the test."""
    service = ServiceSignals(
        service="s",
        running=fields.pop("running", 0),
        queued_requests=fields.pop("queued", 0),
        held_requests=fields.pop("held", 0),
    )
    return RouterSignals(started=START - 1000, time=START + seconds, services=(service,), **fields)


def look(at: float, samples: Samples | None = None, routers: str = "ab", **signals: RouterSignals) -> Measured:
    return measure(signals, routers, samples or {}, ENGINES, START + at)


def test_requests_and_arrivals_are_summed_over_routers() -> None:
    found = look(
        0, a=router(running=3, queued=2, arrivals_per_second=1.5), b=router(running=1, held=4, arrivals_per_second=0.5)
    )
    load = found.load
    assert load is not None
    assert (load.running, load.queued, load.present, load.arrivals) == (4, 6, 10, 2.0)
    assert (load.ready, load.starting, load.at) == (2, 1, START)
    assert found.complete


def test_rates_of_tokens_are_of_the_last_minute_and_known_from_the_second_look_on() -> None:
    found = look(0, a=router(prompt_tokens=1000, cached_tokens=600, completion_tokens=50))
    assert not found.has_rates
    for second in range(10, 121, 10):
        counted = {
            "prompt_tokens": 1000 + 20 * second,
            "cached_tokens": 600 + 15 * second,
            "completion_tokens": 50 + 4 * second if second <= 60 else 290,
        }
        found = look(second, found.samples, a=router(second, **counted))
        assert found.has_rates
        assert found.load is not None
        assert found.load.prompt_tokens == pytest.approx(5.0)
    assert found.load is not None
    assert found.load.completion_tokens == 0.0
    assert len(found.samples["a"]) <= 8


def test_recent_arrivals_are_those_since_the_look_before() -> None:
    found = look(0, routers="a", a=router(arrivals=100))
    assert found.load is not None
    assert found.load.recent_arrivals is None
    found = look(10, found.samples, "a", a=router(10, arrivals=110))
    found = look(20, found.samples, "a", a=router(20, arrivals=170))
    assert found.load is not None
    assert found.load.recent_arrivals == pytest.approx(6.0)


def test_samples_do_not_pile_up_when_a_service_is_looked_at_often() -> None:
    found = look(0, a=router())
    for tenth in range(1, 1000):
        found = look(tenth / 10, found.samples, a=router(tenth / 10, completion_tokens=tenth))
    assert len(found.samples["a"]) < 20
    assert found.load is not None
    assert found.load.completion_tokens == pytest.approx(10.0, rel=0.1)


def test_a_router_that_restarted_counts_from_its_start() -> None:
    before = look(0, routers="a", a=router(completion_tokens=100_000))
    anew = RouterSignals(started=START + 5, time=START + 15, completion_tokens=30)
    found = look(15, before.samples, "a", a=anew)
    assert found.load is not None
    assert found.load.completion_tokens == pytest.approx(3.0)


def test_percentiles_weigh_by_arrivals_and_zero_means_that_nothing_was_measured() -> None:
    slow = Percentiles(p50=1.0, p90=2.0, p99=4.0)
    quick = Percentiles(p50=0.1, p90=0.2, p99=0.4)
    found = look(
        0,
        a=router(ttft_seconds=slow, tpot_seconds=quick, arrivals_per_second=3.0),
        b=router(ttft_seconds=quick, arrivals_per_second=1.0),
    )
    load = found.load
    assert load is not None
    assert load.ttft == pytest.approx((3 * 2.0 + 0.2) / 4, rel=1e-4)
    assert load.tpot == pytest.approx(0.2)
    assert load.mean_tpot == pytest.approx(0.1)
    nothing = look(0, a=router(arrivals_per_second=2.0)).load
    assert nothing is not None
    assert (nothing.ttft, nothing.tpot, nothing.mean_tpot) == (None, None, None)


def test_a_router_that_is_ready_and_silent_makes_the_load_incomplete() -> None:
    assert not look(0, a=router(running=1)).complete
    assert look(0, routers="a", a=router(running=1)).complete


@pytest.mark.parametrize(
    "odd",
    [
        router(arrivals_per_second=math.nan),
        router(ttft_seconds=Percentiles(p90=math.inf)),
        router(tpot_seconds=Percentiles(p50=-1.0)),
        router(running=-3),
        router(completion_tokens=-1),
    ],
)
def test_numbers_that_cannot_be_are_left_out(odd: RouterSignals) -> None:
    found = look(0, a=odd, b=router(running=2))
    assert found.load is not None
    assert (found.load.running, found.complete) == (2, False)
    alone = look(0, routers="a", a=odd)
    assert (alone.load, alone.problem) == (None, "NoMetrics")


@pytest.mark.parametrize("late", [STALE + 1, -STALE - 1])
def test_old_numbers_and_those_of_another_clock_are_no_load(late: float) -> None:
    found = look(late, routers="a", a=router(running=5))
    assert (found.load, found.problem, found.complete) == (None, "StaleMetrics", False)
    assert f"{late:.0f} s old" in found.message


def test_without_a_router_there_is_no_load() -> None:
    assert (look(0).problem, look(0).message) == ("NoMetrics", "no router responds")
    assert look(0, routers="").message == "no router is ready"
