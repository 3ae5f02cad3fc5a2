"""The search for the highest rate: on a step, and on simulated servers with a knee, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import pytest
from engine_support.virtual_time import run_virtually

from blade_llm.benchmark.client.measurement import Failure, Measurement
from blade_llm.benchmark.load import Load
from blade_llm.benchmark.slo import parse_objective
from blade_llm.benchmark.sweep import Probe, Prober, find_rate
from blade_llm.benchmark.workload.datasets import Sample


@pytest.mark.parametrize("knee", [0.013, 0.9, 1.0, 7.3, 250.0])
async def test_a_step_is_found_to_the_precision(knee: float) -> None:
    tried: list[float] = []

    async def passes(rate: float) -> bool:
        tried.append(rate)
        return rate <= knee

    found = await find_rate(passes, start=1.0, precision=0.02)
    assert found is not None
    assert knee / 1.02 <= found <= knee
    assert len(tried) == len(set(tried)) < 25, "a rate is tried once"


async def test_no_rate_passes() -> None:
    async def passes(rate: float) -> bool:
        tried.append(rate)
        return False

    tried: list[float] = []
    assert await find_rate(passes, start=8.0) is None
    assert len(tried) < 15


async def test_every_rate_passes() -> None:
    async def passes(rate: float) -> bool:
        return True

    assert await find_rate(passes, start=1.0) is not None


class Queue:
    """A server that takes ``service`` seconds for a first token, one request at a time, then 1 s for the rest."""

    def __init__(self, service: float, failing: float = 0.0) -> None:
        self.service = service
        self._one = asyncio.Lock()
        self._random = random.Random(7)
        self.failing = failing
        self.waiting = 0

    async def send(self, sample: Sample, due: float) -> Measurement:
        clock = asyncio.get_running_loop().time
        sent = clock()
        async with self._one:
            await asyncio.sleep(self.service)
        first = clock()
        await asyncio.sleep(1.0)
        failure = Failure(kind="HTTP 500") if self._random.random() < self.failing else None
        events = (first, clock())
        return Measurement(due=due, sent=sent, ended=clock(), events=events, output_tokens=11, failure=failure)


def prober(server: Queue, **options: Any) -> Prober:
    clock = asyncio.get_running_loop().time
    return Prober(
        new_load=lambda: Load(server.send, clock),
        samples=itertools.repeat(Sample("x", 11)),
        objectives=[parse_objective("ttft=500ms"), parse_objective("tpot=200ms")],
        random_source=random.Random(1),
        **{"requests": 1000, "seconds": 20.0, **options},
    )


async def _knee(service: float, **options: Any) -> tuple[float | None, list[Probe]]:
    probes: list[Probe] = []

    async def passes(rate: float) -> bool:
        # The queue is a new one for each rate, as if the server had been left to rest.
        probe, _ = await prober(Queue(service), **options).probe(rate)
        probes.append(probe)
        return probe.passed

    return await find_rate(passes, start=1.0, precision=0.05), probes


def _lindley(service: float) -> float:
    """The rate at which one in ten waits longer than ``500 ms - service``, by Lindley's recursion of the waits."""
    source = random.Random(99)
    gaps = [source.expovariate(1.0) for _ in range(50_000)]

    def late(rate: float) -> float:
        wait, count = 0.0, 0
        for gap in gaps:
            count += wait > 0.5 - service
            wait = max(0.0, wait + service - gap / rate)
        return count / len(gaps)

    low, high = 0.0, 1 / service
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if late(middle) <= 0.1 else (low, middle)
    return low


@pytest.mark.parametrize("service", [0.1, 0.05])
def test_the_knee_of_a_queue_is_found(service: float) -> None:
    found, probes = run_virtually(_knee(service, requests=2500))
    assert found is not None
    assert found == pytest.approx(_lindley(service), rel=0.1)
    assert all(probe.passed == (probe.rate <= found) for probe in probes)


def test_a_stricter_share_has_a_lower_knee() -> None:
    usual, _ = run_virtually(_knee(0.1))
    strict, _ = run_virtually(_knee(0.1, attainment=0.99))
    assert usual is not None
    assert strict is not None
    assert strict < usual


def test_more_than_the_server_bears_is_noticed_early() -> None:
    async def run() -> tuple[Probe, Load]:
        return await prober(Queue(0.1)).probe(40.0)

    probe, load = run_virtually(run())
    assert not probe.passed
    assert probe.cut_short
    assert len(load.finished) < 400
    assert load.in_flight > 0, "the rest is given up"


def test_a_queue_that_grows_shows_in_the_later_half() -> None:
    """2 % above capacity, most of a short probe's requests still keep a generous limit."""

    async def run(limit: str) -> Probe:
        one = prober(Queue(0.1), requests=400, attainment=0.6, burstiness=1000.0)
        growing = Prober(
            new_load=one.new_load,
            samples=one.samples,
            objectives=[parse_objective(limit)],
            attainment=one.attainment,
            requests=one.requests,
            seconds=1.0,
            burstiness=one.burstiness,
            random_source=one.random_source,
        )
        return (await growing.probe(10.2))[0]

    probe = run_virtually(run("ttft=800ms"))
    assert not probe.cut_short
    assert probe.well_served >= 0.6
    assert not probe.passed


def test_warm_up_is_not_judged() -> None:
    """The first second's requests fail; they are a fifth of all."""

    class Cold(Queue):
        async def send(self, sample: Sample, due: float) -> Measurement:
            request = await super().send(sample, due)
            cold = request.sent < 19.0
            return Measurement(
                due=due,
                sent=request.sent,
                ended=request.ended,
                events=request.events,
                output_tokens=11,
                failure=Failure(kind="HTTP 503") if cold else None,
            )

    async def run() -> tuple[Probe, Load]:
        return await prober(Cold(0.001), requests=100, seconds=1.0, burstiness=1e6).probe(1.0)

    probe, load = run_virtually(run())
    assert probe.passed
    assert (probe.requests, probe.well_served, probe.failed) == (100, 1.0, 0)
    assert len(load.finished) == 100
    assert load.seconds == pytest.approx(100.0, rel=0.02)


def test_failures_are_not_well_served() -> None:
    async def run() -> Probe:
        return (await prober(Queue(0.001, failing=0.15), seconds=1.0).probe(1.0))[0]

    assert not run_virtually(run()).passed


def test_being_stopped_is_not_a_verdict() -> None:
    async def run() -> None:
        task = asyncio.create_task(prober(Queue(0.001)).probe(1.0))
        await asyncio.sleep(5.0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert len(asyncio.all_tasks()) == 1, "the load has ended with it"

    run_virtually(run())
