"""Failures that one worker detects are shared with the others; what each detects itself it keeps."""

import asyncio
from collections.abc import Sequence

import pytest
from router_support.serving import eventually

from blade_protocol.routing import EndpointConfig
from blade_router.endpoints import shared_health
from blade_router.endpoints.breaker import CONSECUTIVE_FAILURES
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.endpoints.shared_health import WIDTH, Row, SharedHealth
from blade_router.http.upstream.errors import ConnectionLost


class FakeRow:
    def __init__(self, cells: Sequence[list[int]], worker: int) -> None:
        self.cells = cells
        self.own = cells[worker]

    def close(self) -> None:
        self.own[:] = [0] * WIDTH


class Workers:
    """Two workers over the same two endpoints."""

    def __init__(self) -> None:
        self.table: dict[str, list[list[int]]] = {}
        self.sets = [EndpointSet(), EndpointSet()]
        self.shared = [
            SharedHealth(found, lambda name, worker=worker: self.row(name, worker))  # type: ignore[misc]
            for worker, found in enumerate(self.sets)
        ]
        for found in self.sets:
            found.update(EndpointConfig(url=f"http://10.0.0.{number}:80") for number in range(2))
            for endpoint in found.all:
                endpoint.health.mark_up()

    def row(self, name: str, worker: int) -> Row:
        return FakeRow(self.table.setdefault(name, [[0] * WIDTH for _ in self.sets]), worker)

    @property
    def usable(self) -> list[int]:
        return [found.usable_count() for found in self.sets]

    def poll(self) -> None:
        for each in self.shared:
            each.poll()


@pytest.mark.parametrize("what", ["down", "draining", "ejected"])
def test_failures_are_shared(what: str) -> None:
    workers = Workers()
    mine, theirs = (found.all[0] for found in workers.sets)
    if what == "down":
        mine.health.mark_down("refused")
    elif what == "draining":
        mine.health.mark_draining()
    else:
        for _ in range(CONSECUTIVE_FAILURES):
            mine.health.record_failure("boom", ConnectionLost("boom"))
    assert workers.usable == [1, 2]
    workers.poll()
    assert workers.usable == [1, 1]
    assert (theirs.health.up is False, theirs.health.draining, not theirs.health.breaker.closed) == (
        what == "down",
        what == "draining",
        what == "ejected",
    )
    assert theirs.health.failures == 0, "what others saw is no record of ours"


def test_recovery_is_not_shared_and_not_undone_by_an_echo() -> None:
    workers = Workers()
    mine, theirs = (found.all[0] for found in workers.sets)
    mine.health.mark_down("refused")
    workers.poll()
    theirs.health.mark_up()
    workers.poll()
    assert workers.usable == [1, 2]
    mine.health.mark_up()
    workers.poll()
    assert workers.usable == [2, 2]
    theirs.health.mark_down("again")
    workers.poll()
    assert workers.usable == [1, 1], "the same failure is new again after it was over"


def test_stale_failures_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers()
    workers.sets[0].all[0].health.mark_down("refused")
    monkeypatch.setattr(shared_health, "STALE", 0)
    workers.poll()
    assert workers.usable == [1, 2]


def test_rows_follow_the_endpoints_and_may_be_missing() -> None:
    workers = Workers()
    mine = workers.sets[0].all[0]
    mine.health.mark_down("refused")
    workers.sets[0].update([])
    assert workers.table[mine.url][0] == [0] * WIDTH
    workers.poll()

    def full(name: str) -> Row:
        raise RuntimeError("all rows are in use")

    alone = EndpointSet()
    each = SharedHealth(alone, full)
    alone.update([EndpointConfig(url="http://10.0.0.9:80")])
    alone.all[0].health.mark_down("refused")
    each.poll()


async def test_following_polls_by_itself() -> None:
    workers = Workers()
    task = asyncio.create_task(workers.shared[1].follow())
    workers.sets[0].all[0].health.mark_down("refused")
    await eventually(lambda: workers.usable == [1, 1])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_a_failure_of_one_worker_hides_no_older_one_of_another() -> None:
    """A number is written before others see it, so what is seen later may have been published earlier."""
    endpoints = EndpointSet()
    cells = [[0] * WIDTH for _ in range(3)]
    observer = SharedHealth(endpoints, lambda name: FakeRow(cells, 0), clock=lambda: now)
    now = 1_000
    endpoints.update([EndpointConfig(url="http://10.0.0.1:80")])
    (endpoint,) = endpoints.all
    endpoint.health.mark_up()
    now = 3_000
    cells[1][:] = [2_000, shared_health.EJECTED, now]  # over at once
    observer.poll()
    assert endpoint.health.up
    cells[2][:] = [1_500, shared_health.DOWN, 0]
    observer.poll()
    assert endpoint.health.up is False
    endpoint.health.mark_up()
    observer.poll()
    assert endpoint.health.up, "applied once"
