"""Closed and open loop, in virtual time."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from engine_support.virtual_time import run_virtually

from blade_llm.benchmark.client.measurement import Measurement
from blade_llm.benchmark.load import Limit, Load
from blade_llm.benchmark.workload.datasets import Sample

SAMPLES = itertools.repeat(Sample("x", 1))


class Server:
    """Responds to each request after ``seconds``; remembers how many it had at once."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.now = self.most = 0
        self.sent: list[float] = []

    async def send(self, sample: Sample, due: float) -> Measurement:
        clock = asyncio.get_running_loop().time
        sent = clock()
        self.sent.append(sent)
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(self.seconds)
        self.now -= 1
        return Measurement(due=due, sent=sent, ended=clock(), events=(clock(),), output_tokens=1)

    def load(self) -> Load:
        return Load(self.send, asyncio.get_running_loop().time)


def test_closed_loop_keeps_its_users_busy() -> None:
    server = Server(2.0)

    async def run() -> Load:
        load = server.load()
        await load.closed_loop(SAMPLES, 4, Limit(requests=20))
        return load

    load = run_virtually(run())
    assert server.most == 4
    assert (load.sent, len(load.finished), load.in_flight) == (20, 20, 0)
    assert load.seconds == pytest.approx(10.0)


def test_closed_loop_with_fewer_requests_than_users() -> None:
    server = Server(1.0)
    run_virtually(_closed(server, 8, Limit(requests=3)))
    assert server.sent == [0, 0, 0]


async def _closed(server: Server, users: int, limit: Limit) -> None:
    await server.load().closed_loop(SAMPLES, users, limit)


def test_a_duration_ends_sending_and_waits_for_responses() -> None:
    server = Server(2.0)
    run_virtually(_closed(server, 1, Limit(seconds=5.0)))
    assert server.sent == [0, 2, 4]


def test_open_loop_waits_for_nobody() -> None:
    server = Server(100.0)

    async def run() -> Load:
        load = server.load()
        await load.open_loop(SAMPLES, iter([0.0, 0.5, 0.75, 4.0, 9.0, 11.0]), Limit(seconds=10.0))
        return load

    load = run_virtually(run())
    assert server.sent == pytest.approx([0.0, 0.5, 0.75, 4.0, 9.0])
    assert server.most == 5
    assert load.seconds == pytest.approx(109.0)
    assert all(request.lag == pytest.approx(0.0) for request in load.finished)


def test_open_loop_stops_after_its_requests() -> None:
    server = Server(1.0)

    async def run() -> None:
        await server.load().open_loop(SAMPLES, itertools.count(0.0, 0.25), Limit(requests=6))

    run_virtually(run())
    assert len(server.sent) == 6


def test_a_generator_that_is_held_up_is_late() -> None:
    server = Server(0.0)

    async def run() -> Load:
        loop = asyncio.get_running_loop()
        load = server.load()
        task = asyncio.create_task(load.open_loop(SAMPLES, iter([0.0, 1.0, 2.0]), Limit()))
        await asyncio.sleep(0.5)
        loop.now += 3.0  # type: ignore[attr-defined]
        await task
        return load

    load = run_virtually(run())
    assert [round(request.lag, 3) for request in load.finished] == [0.0, 2.5, 1.5]


def test_what_was_measured_survives_being_stopped() -> None:
    server = Server(2.0)

    async def run() -> Load:
        load = server.load()
        task = asyncio.create_task(load.closed_loop(SAMPLES, 3, Limit()))
        await asyncio.sleep(5.0)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(50.0)
        return load

    load = run_virtually(run())
    assert (len(load.finished), load.in_flight) == (6, 3)
    assert load.seconds == pytest.approx(5.0)
    assert len(server.sent) == 9


def test_changes_are_notified() -> None:
    seen: list[tuple[int, int]] = []
    server = Server(1.0)

    async def run() -> None:
        load = Load(
            server.send,
            asyncio.get_running_loop().time,
            on_change=lambda load: seen.append((load.sent, len(load.finished))),
        )
        await load.closed_loop(SAMPLES, 1, Limit(requests=2))

    run_virtually(run())
    assert seen == [(1, 0), (1, 1), (2, 1), (2, 2)]
