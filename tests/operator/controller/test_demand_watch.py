"""The routers of sleeping services: each is waited for, and what one of them holds wakes its service."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from blade_operator import backoff
from blade_operator.controller import demand_watch
from blade_operator.controller.demand_watch import DemandWatch
from blade_operator.fleet import Router
from blade_operator.kept_connections import Peer
from blade_operator.model.objects import Key

ONE, OTHER = Key("default", "one"), Key("default", "other")


class Routers:
    """What is asked of routers, and the response of each as soon as the test gives it."""

    def __init__(self) -> None:
        self.asked: list[Router] = []
        self.responses: dict[str, asyncio.Future[bool]] = {}

    async def wait(self, router: Router) -> bool:
        self.asked.append(router)
        self.responses[router.name] = asyncio.get_running_loop().create_future()
        return await self.responses[router.name]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUICK", "PAUSE", "MOST_PAUSE"):
        monkeypatch.setattr(demand_watch, name, 0.0)
    monkeypatch.setattr(backoff, "BASE", 0.0)


def named(*names: str, host: str = "10.0.0.1") -> list[Router]:
    return [Router(name, Peer(name, host, 9000), {"metadata": {"name": name}}) for name in names]


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_each_router_is_waited_for_and_demand_at_one_of_them_is_reported() -> None:
    routers, woken = Routers(), list[Key]()
    watch = DemandWatch(routers.wait, woken.append)
    watch.watch(ONE, named("a", "b"))
    watch.watch(OTHER, named("c"))
    await turns()
    assert (sorted(routers.responses), len(watch), woken) == (["a", "b", "c"], 3, [])
    routers.responses["b"].set_result(True)
    await turns()
    assert woken == [ONE]
    watch.watch(ONE, ())
    await turns()
    assert len(watch) == 1
    assert routers.responses["a"].cancelled()
    watch.close()
    await turns()
    assert len(watch) == 0
    assert routers.responses["c"].cancelled()


async def test_it_goes_on_waiting_after_a_wait_without_demand_and_after_one_that_failed() -> None:
    routers, woken = Routers(), list[Key]()
    watch = DemandWatch(routers.wait, woken.append)
    watch.watch(ONE, named("a"))
    await turns()
    for number, error in enumerate([None, ConnectionError("gone"), TimeoutError(), ValueError("404")], 2):
        response = routers.responses["a"]
        response.set_result(False) if error is None else response.set_exception(error)
        await turns()
        assert (len(routers.asked), woken) == (number, [])
    routers.responses["a"].set_result(True)
    await turns()
    assert woken == [ONE]
    watch.close()


async def test_demand_that_stays_is_reported_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = await _pauses(monkeypatch, lambda: _returns(True), 7)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


async def test_a_router_that_lets_nobody_wait_is_asked_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = await _pauses(monkeypatch, lambda: _returns(False), 9)
    assert pauses[0] == 1.0
    assert pauses == sorted(pauses)
    assert pauses[-1] > 20.0


async def test_a_router_is_asked_as_it_is_now() -> None:
    routers = Routers()
    watch = DemandWatch(routers.wait, lambda key: None)
    watch.watch(ONE, named("a"))
    await turns()
    moved = named("a", host="10.0.0.2")
    watch.watch(ONE, moved)
    routers.responses["a"].set_result(False)
    await turns()
    assert routers.asked[1:] == moved
    watch.close()


async def test_there_is_a_most_and_who_leaves_makes_room() -> None:
    routers = Routers()
    watch = DemandWatch(routers.wait, lambda key: None, most=2)
    watch.watch(ONE, named("a", "b"))
    watch.watch(OTHER, named("c"))
    await turns()
    assert (sorted(routers.responses), len(watch)) == (["a", "b"], 2)
    watch.watch(ONE, named("a"))
    watch.watch(OTHER, named("c"))
    await turns()
    assert (sorted(routers.responses), len(watch)) == (["a", "b", "c"], 2)
    watch.close()


async def _returns(demand: bool) -> bool:
    return demand


async def _pauses(monkeypatch: pytest.MonkeyPatch, wait: Callable[[], Awaitable[bool]], count: int) -> list[float]:
    """The first pauses between waits that all end at once in the same way."""
    for name, seconds in (("QUICK", 1.0), ("PAUSE", 1.0), ("MOST_PAUSE", 30.0)):
        monkeypatch.setattr(demand_watch, name, seconds)
    monkeypatch.setattr(backoff, "BASE", 0.2)
    monkeypatch.setattr("random.uniform", lambda low, high: 1.0)
    pauses: list[float] = []
    enough, sleep = asyncio.Event(), asyncio.sleep

    async def record(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == count:
            enough.set()
        await sleep(0)

    monkeypatch.setattr("asyncio.sleep", record)
    watch = DemandWatch(lambda router: wait(), lambda key: None)
    watch.watch(ONE, named("a"))
    await enough.wait()
    watch.close()
    return pauses[:count]
