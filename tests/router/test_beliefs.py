"""What one worker finds out about an endpoint the others believe, and what they find out themselves they keep."""

import asyncio
from collections.abc import Sequence

import pytest
from router_support.serving import eventually

from blade_protocol.routing import EndpointConfig
from blade_router import beliefs
from blade_router.beliefs import WIDTH, Row, SharedBeliefs
from blade_router.breaker import OPEN_AFTER
from blade_router.endpoints import EndpointSet
from blade_router.upstream_errors import ConnectionLost


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
        self.beliefs = [
            SharedBeliefs(found, lambda name, worker=worker: self.row(name, worker))  # type: ignore[misc]
            for worker, found in enumerate(self.sets)
        ]
        for found in self.sets:
            found.update(EndpointConfig(url=f"http://10.0.0.{number}:80") for number in range(2))
            for endpoint in found.all:
                endpoint.mark_up()

    def row(self, name: str, worker: int) -> Row:
        return FakeRow(self.table.setdefault(name, [[0] * WIDTH for _ in self.sets]), worker)

    @property
    def usable(self) -> list[int]:
        return [found.usable_count() for found in self.sets]

    def hear(self) -> None:
        for each in self.beliefs:
            each.hear()


@pytest.mark.parametrize("what", ["down", "draining", "ejected"])
def test_bad_news_travels(what: str) -> None:
    workers = Workers()
    mine, theirs = (found.all[0] for found in workers.sets)
    if what == "down":
        mine.mark_down("refused")
    elif what == "draining":
        mine.mark_draining()
    else:
        for _ in range(OPEN_AFTER):
            mine.record_failure("boom", ConnectionLost("boom"))
    assert workers.usable == [1, 2]
    workers.hear()
    assert workers.usable == [1, 1]
    assert (theirs.up is False, theirs.engine_draining, not theirs.breaker.closed) == (
        what == "down",
        what == "draining",
        what == "ejected",
    )
    assert theirs.failures == 0, "what others saw is no record of ours"


def test_good_news_is_everyones_own_and_is_not_taken_back_by_an_echo() -> None:
    workers = Workers()
    mine, theirs = (found.all[0] for found in workers.sets)
    mine.mark_down("refused")
    workers.hear()
    theirs.mark_up()
    workers.hear()
    assert workers.usable == [1, 2]
    mine.mark_up()
    workers.hear()
    assert workers.usable == [2, 2]
    theirs.mark_down("again")
    workers.hear()
    assert workers.usable == [1, 1], "the same news is news again after it was over"


def test_old_news_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers()
    workers.sets[0].all[0].mark_down("refused")
    monkeypatch.setattr(beliefs, "STALE", 0)
    workers.hear()
    assert workers.usable == [1, 2]


def test_rows_follow_the_endpoints_and_may_be_missing() -> None:
    workers = Workers()
    mine = workers.sets[0].all[0]
    mine.mark_down("refused")
    workers.sets[0].update([])
    assert workers.table[mine.url][0] == [0] * WIDTH
    workers.hear()

    def full(name: str) -> Row:
        raise RuntimeError("all rows are in use")

    alone = EndpointSet()
    each = SharedBeliefs(alone, full)
    alone.update([EndpointConfig(url="http://10.0.0.9:80")])
    alone.all[0].mark_down("refused")
    each.hear()


async def test_following_hears_without_being_told() -> None:
    workers = Workers()
    task = asyncio.create_task(workers.beliefs[1].follow())
    workers.sets[0].all[0].mark_down("refused")
    await eventually(lambda: workers.usable == [1, 1])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_news_of_one_worker_hides_no_older_news_of_another() -> None:
    """A number is written before others see it, so what is seen later may have been told earlier."""
    endpoints = EndpointSet()
    cells = [[0] * WIDTH for _ in range(3)]
    believes = SharedBeliefs(endpoints, lambda name: FakeRow(cells, 0), clock=lambda: now)
    now = 1_000
    endpoints.update([EndpointConfig(url="http://10.0.0.1:80")])
    (endpoint,) = endpoints.all
    endpoint.mark_up()
    now = 3_000
    cells[1][:] = [2_000, beliefs.EJECTED, now]  # over at once
    believes.hear()
    assert endpoint.up
    cells[2][:] = [1_500, beliefs.DOWN, 0]
    believes.hear()
    assert endpoint.up is False
    endpoint.mark_up()
    believes.hear()
    assert endpoint.up, "heard once"
