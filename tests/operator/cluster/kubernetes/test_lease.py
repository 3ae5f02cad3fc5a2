"""Leader election: one at a time, by a record nobody's clock is trusted with, and a fence that shuts before it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from operator_support.apiserver import Clock, LeaseServer

from blade_operator.cluster.kubernetes import lease as module
from blade_operator.cluster.kubernetes.api import WRITE_TIMEOUT
from blade_operator.cluster.kubernetes.election import Election
from blade_operator.cluster.kubernetes.fence import NotLeader, WriteFence, clock
from blade_operator.cluster.kubernetes.lease import DURATION, MARGIN, RENEW, Lease, LeaseLost


class _Candidate:
    def __init__(self, server: LeaseServer, clock: Clock, name: str) -> None:
        api: Any = server
        self.fence = WriteFence(clock)
        self.lease = Lease(api, self.fence, "system", "op", name, clock)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Sleeping advances the clock."""
    clock = Clock()
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        clock.now += seconds
        await real(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return clock


@pytest.fixture
def server() -> LeaseServer:
    return LeaseServer()


async def test_the_first_becomes_leader_and_its_gate_shuts_before_the_lease_ends(
    server: LeaseServer, now: Clock
) -> None:
    one = _Candidate(server, now, "one")
    with pytest.raises(NotLeader):
        one.fence.check()
    await one.lease.acquire()
    now.now += DURATION - MARGIN - 0.01
    one.fence.check()
    now.now += 0.02
    with pytest.raises(NotLeader):
        one.fence.check()
    assert WRITE_TIMEOUT < MARGIN  # what is sent last has ended before another may begin


async def test_a_standby_waits_until_the_record_has_not_changed_for_its_duration(
    server: LeaseServer, now: Clock
) -> None:
    one, two = _Candidate(server, now, "one"), _Candidate(server, now, "two")
    await one.lease.acquire()
    began = now.now
    await two.lease.acquire()  # one never renews
    assert DURATION <= now.now - began < DURATION + 0.5
    assert server.lease is not None
    assert server.lease["spec"]["holderIdentity"] == "two"
    assert server.lease["spec"]["leaseTransitions"] == 1


async def test_the_clock_in_the_record_is_not_trusted(server: LeaseServer, now: Clock) -> None:
    one, two = _Candidate(server, now, "one"), _Candidate(server, now, "two")
    await one.lease.acquire()
    assert server.lease is not None
    server.lease["spec"]["renewTime"] = "1999-01-01T00:00:00.000000Z"  # a leader whose clock is far behind
    assert not await two.lease._take()
    now.now += DURATION - 0.1
    assert not await two.lease._take()


async def test_a_leader_that_renews_keeps_the_lease_and_its_gate_open(server: LeaseServer, now: Clock) -> None:
    one, two = _Candidate(server, now, "one"), _Candidate(server, now, "two")
    await one.lease.acquire()
    began, held = now.now, asyncio.create_task(one.lease.hold())
    while now.now < began + 20 * RENEW:
        await asyncio.sleep(0)
        assert one.fence.is_open
        assert not await two.lease._take()
    held.cancel()
    assert server.writes >= 20


async def test_a_leader_that_cannot_renew_stops_writing_then_ends(server: LeaseServer, now: Clock) -> None:
    one = _Candidate(server, now, "one")
    await one.lease.acquire()
    began = now.now
    server.away = True
    with pytest.raises(LeaseLost, match="not renewed for 10 s"):
        await one.lease.hold()
    assert now.now - began == pytest.approx(DURATION, abs=0.01)


async def test_a_short_outage_costs_nothing(server: LeaseServer, now: Clock) -> None:
    one = _Candidate(server, now, "one")
    await one.lease.acquire()
    began, held = now.now, asyncio.create_task(one.lease.hold())
    while now.now < began + 30:
        server.away = 4 < now.now - began < 9
        await asyncio.sleep(0)
    assert not held.done()
    held.cancel()


async def test_a_leader_that_was_stopped_writes_nothing_and_ends(server: LeaseServer, now: Clock) -> None:
    one, two = _Candidate(server, now, "one"), _Candidate(server, now, "two")
    await one.lease.acquire()
    now.now += 30  # SIGSTOP
    await two.lease.acquire()
    with pytest.raises(NotLeader):
        one.fence.check()
    with pytest.raises(LeaseLost):
        await one.lease.hold()
    assert server.lease is not None
    assert server.lease["spec"]["holderIdentity"] == "two"


async def test_a_renewal_that_comes_too_late_finds_the_other(server: LeaseServer, now: Clock) -> None:
    one = _Candidate(server, now, "one")
    await one.lease.acquire()
    assert server.lease is not None
    server.lease["spec"]["holderIdentity"] = "two"
    server.lease["metadata"]["resourceVersion"] = "99"
    with pytest.raises(LeaseLost, match="two has the lease"):
        await one.lease.hold()


async def test_of_two_at_the_same_moment_one_wins(server: LeaseServer, now: Clock) -> None:
    candidates = [_Candidate(server, now, name) for name in ("one", "two")]
    results = await asyncio.gather(*(each.lease._take() for each in candidates))
    assert sorted(results) == [False, True]
    assert [each.fence.is_open for each in candidates] == results


async def test_a_released_lease_is_taken_at_once(server: LeaseServer, now: Clock) -> None:
    one, two = _Candidate(server, now, "one"), _Candidate(server, now, "two")
    await one.lease.acquire()
    await one.lease.release()
    assert not one.fence.is_open
    began = now.now
    await two.lease.acquire()
    assert now.now == began


async def test_a_standby_that_stops_leaves_the_leaders_lease_alone(server: LeaseServer, now: Clock) -> None:
    one, two = _Candidate(server, now, "one"), _Candidate(server, now, "two")
    await one.lease.acquire()
    await two.lease._take()
    await two.lease.release()
    assert server.lease is not None
    assert server.lease["spec"]["holderIdentity"] == "one"


def test_the_clock_goes_on() -> None:
    assert clock() <= clock()


async def test_a_loop_that_is_busy_costs_no_lease(server: LeaseServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RENEW", 0.005)
    fence = WriteFence()

    @asynccontextmanager
    async def connect() -> AsyncIterator[Any]:
        yield server

    async with Election(connect, lambda api: Lease(api, fence, "system", "op", "one")) as election:
        await election.acquire()
        held = asyncio.create_task(election.hold())
        await asyncio.sleep(0)
        before = server.writes
        while server.writes < before + 3:
            time.sleep(0.01)  # noqa: ASYNC251
        held.cancel()
        with pytest.raises(asyncio.CancelledError):
            await held
        await election.release()
    assert server.lease is not None
    assert server.lease["spec"]["holderIdentity"] == ""


async def test_a_lost_lease_is_reported_to_the_loop(server: LeaseServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RENEW", 0.005)
    fence = WriteFence()

    @asynccontextmanager
    async def connect() -> AsyncIterator[Any]:
        yield server

    async with Election(connect, lambda api: Lease(api, fence, "system", "op", "one")) as election:
        await election.acquire()
        assert server.lease is not None
        server.lease["spec"]["holderIdentity"] = "two"
        server.lease["metadata"]["resourceVersion"] = "99"
        with pytest.raises(LeaseLost, match="two has the lease"):
            await election.hold()
