"""The decision loop: every service in turn, a reconcile only when there is something to do, nobody waits for others."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest
from operator_support.local import until
from operator_support.scaled import CONCURRENCY, Scaled

from blade_operator.controller import decision_loop
from blade_operator.controller.decision_loop import SLOTS, DecisionLoop
from blade_operator.controller.work_queue import Priority
from blade_operator.fleet import Router
from blade_operator.kept_connections import Peer
from blade_operator.model.objects import Key
from blade_operator.model.plan import Plan
from blade_operator.reconcile.scaling.look import PERIOD, is_decided
from blade_operator.scaling import serialise
from blade_protocol.signals import RouterSignals

KEY = Key("team", "qwen")


class Looped:
    """A service whose reconciles ask no router, and the loop that does. What it enqueues is reconciled by the test."""

    def __init__(self, scaling: dict[str, Any], **spec: Any) -> None:
        self.cluster = Scaled(scaling, **spec)
        self.cluster.signals_queried = False
        self.enqueued: list[Priority] = []
        self.asked: list[str] = []
        self.silent: asyncio.Event | None = None
        """Routers respond when it is set."""
        self.loop = DecisionLoop(self.query, lambda key, priority: self.enqueued.append(priority), self.now)
        self.reconcile()

    def now(self) -> Any:
        return self.cluster.now

    async def query(self, routers: Sequence[Router]) -> Mapping[str, RouterSignals]:
        self.asked += [router.name for router in routers]
        signals = self.cluster._signals(self.cluster.now.timestamp())
        if self.silent is not None:
            await self.silent.wait()
        return signals

    def reconcile(self) -> Plan:
        """As the controller does it."""
        self.cluster.autoscaler = self.loop.remembered(KEY) or self.cluster.autoscaler
        plan = self.cluster.reconcile()
        self.cluster.run_controllers()
        for pod in self.cluster.pods:
            self.cluster.become_ready(pod)
        self.loop.remember(KEY, plan.autoscaler)
        self.loop.watch(KEY, plan.scale_target, (Router("router", Peer("uid", "10.0.0.1", 9080), {}),))
        return plan

    async def look(self, seconds: float = PERIOD) -> list[Priority]:
        """A look so much later; what it enqueued."""
        self.cluster.now += timedelta(seconds=seconds)
        before = len(self.enqueued)
        for slot in range(SLOTS):
            self.loop.begin(slot)
        await asyncio.gather(*self.loop._looking.values())
        return self.enqueued[before:]

    async def settle(self) -> None:
        """Looks for two minutes, and the reconciles that they ask for."""
        for _ in range(12):
            if await self.look():
                self.reconcile()
                self.reconcile()


async def test_a_look_that_changes_nothing_asks_for_no_reconcile() -> None:
    looped = Looped(CONCURRENCY)
    looped.cluster.running = 2
    await looped.settle()
    assert [await looped.look() for _ in range(12)] == [[]] * 12
    assert looped.asked[-12:] == ["router"] * 12


async def test_a_decision_on_engines_is_reconciled_at_once_written_first_and_acted_upon_then() -> None:
    looped = Looped(CONCURRENCY)
    await looped.settle()
    looped.cluster.running = 24
    assert await looped.look() == [Priority.SCALING]
    plan = looped.reconcile()
    assert plan.status is not None
    assert (plan.status["scaling"]["replicas"], looped.cluster.replicas) == (3, 1)
    assert [event.reason for event in plan.events if event.reason == "ScaledUp"] == ["ScaledUp"]
    assert (plan.requeue_after or 99) < 1
    looped.reconcile()
    assert looped.cluster.replicas == 3
    assert await looped.look() == []
    assert len(looped.cluster.scaling["changes"]) == 1


async def test_a_reconcile_after_a_look_decides_nothing_by_itself() -> None:
    looped = Looped(CONCURRENCY)
    await looped.settle()
    before = looped.loop.remembered(KEY)
    looped.cluster.now += timedelta(seconds=25)
    looped.reconcile()
    after = looped.loop.remembered(KEY)
    assert before is not None
    assert after is not None
    assert (after.decided_at, after.memory, after.samples) == (before.decided_at, before.memory, before.samples)
    assert looped.cluster.condition == ("True", "Deciding")


@pytest.mark.parametrize("harm", ["silent", "late"])
async def test_without_metrics_nothing_is_scaled_down_and_the_condition_is_written(harm: str) -> None:
    looped = Looped(CONCURRENCY)
    looped.cluster.running = 24
    await looped.settle()
    assert looped.cluster.replicas == 3
    looped.cluster.running, before = 0, len(looped.enqueued)
    if harm == "silent":
        looped.cluster.silent = {pod["metadata"]["name"] for pod in looped.cluster.pods}
    else:
        looped.cluster.late = 600
    for _ in range(60):
        if await looped.look():
            looped.reconcile()
    assert looped.cluster.replicas == 3
    assert looped.cluster.condition == ("Unknown", "NoMetrics" if harm == "silent" else "StaleMetrics")
    assert looped.enqueued[before:] == [Priority.RESYNC]


async def test_an_operator_that_starts_anew_goes_on_with_what_is_written() -> None:
    looped = Looped(CONCURRENCY)
    looped.cluster.running = 40
    await looped.settle()
    assert looped.cluster.replicas == 5
    looped.cluster.restart_operator(away=300)
    again = DecisionLoop(looped.query, lambda key, priority: looped.enqueued.append(priority), looped.now)
    looped.loop, looped.cluster.running = again, 1
    looped.reconcile()
    for _ in range(11):
        assert await looped.look() == []
    assert looped.cluster.replicas == 5


async def test_saved_state_is_decoded_once_and_never_by_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    looped = Looped(CONCURRENCY)
    looped.cluster.running = 24
    await looped.settle()
    decoded: list[str] = []
    load = serialise.load
    monkeypatch.setattr(serialise, "load", lambda text: decoded.append(text) or load(text))  # type: ignore[func-returns-value]
    for running in (24, 40, 3, 24):
        looped.cluster.running = running
        for _ in range(20):
            if await looped.look():
                looped.reconcile()
            looped.reconcile()
    assert not decoded
    looped.cluster.restart_operator()
    looped.loop.forget(KEY)
    looped.reconcile()
    await looped.settle()
    assert len(decoded) == 1


async def test_a_service_is_looked_at_no_more_once_it_is_gone_or_not_scaled_or_anothers() -> None:
    looped = Looped(CONCURRENCY)
    await looped.settle()
    looped.cluster.edit(scaling={"mode": "Fixed"})
    looped.reconcile()
    assert len(looped.loop) == 0
    asked = len(looped.asked)
    await looped.look()
    assert len(looped.asked) == asked
    looped.cluster.edit(scaling=CONCURRENCY)
    looped.reconcile()
    assert len(looped.loop) == 1
    looped.loop.forget(KEY)
    await looped.look()
    assert (len(looped.asked), len(looped.loop), looped.loop.remembered(KEY)) == (asked, 0, None)


async def test_what_is_forgotten_while_its_routers_are_asked_is_not_decided_on() -> None:
    looped = Looped(CONCURRENCY)
    await looped.settle()
    looped.cluster.running, looped.silent = 40, asyncio.Event()
    looped.cluster.now += timedelta(seconds=PERIOD)
    before = len(looped.enqueued)
    for slot in range(SLOTS):
        looped.loop.begin(slot)
    await until(lambda: bool(looped.loop._looking))
    looped.loop.forget(KEY)
    looped.silent.set()
    await until(lambda: not looped.loop._looking)
    assert (looped.loop.remembered(KEY), looped.enqueued[before:]) == (None, [])


async def test_a_look_that_still_waits_is_not_begun_again_and_a_decision_of_a_reconcile_stands() -> None:
    looped = Looped(CONCURRENCY)
    await looped.settle()
    looped.silent = asyncio.Event()
    asked = len(looped.asked)
    for _ in range(3):
        looped.cluster.now += timedelta(seconds=PERIOD)
        for slot in range(SLOTS):
            looped.loop.begin(slot)
        await asyncio.sleep(0)
    assert len(looped.asked) == asked + 1
    looped.cluster.signals_queried, looped.cluster.running = True, 40
    looped.reconcile()
    decided = looped.loop.remembered(KEY)
    looped.silent.set()
    await until(lambda: not looped.loop._looking)
    assert looped.loop.remembered(KEY) is decided


async def test_a_reconcile_asks_routers_itself_where_nobody_has_decided_lately() -> None:
    looped = Looped(CONCURRENCY)
    await looped.settle()
    service, at = looped.cluster.service, looped.cluster.now.timestamp()
    known = looped.loop.remembered(KEY)
    assert is_decided(known, service, at)
    assert not is_decided(known, service, at + 3 * PERIOD)
    assert not is_decided(known, service, at - 3600)
    assert not is_decided(None, service, at)
    assert not is_decided(known, {**service, "metadata": {**service["metadata"], "uid": "other"}}, at)
    looped.cluster.edit(scaling={**CONCURRENCY, "mode": "Advisory"})
    assert not is_decided(known, looped.cluster.service, at)


class Many:
    """Services whose routers are asked, and respond unless they hang."""

    def __init__(self, count: int, hang: frozenset[str] = frozenset()) -> None:
        looped = Looped(CONCURRENCY)
        self.target, self.autoscaler = looped.loop._watched[KEY].target, looped.loop.remembered(KEY)
        self.cluster = looped.cluster
        self.asked: list[str] = []
        self.hang = hang
        self.failing: set[str] = set()
        self.loop = DecisionLoop(self.query, lambda key, priority: None, lambda: self.cluster.now)
        for number in range(count):
            self.add(f"s{number}")

    def add(self, name: str) -> None:
        key = Key("team", name)
        self.loop.remember(key, self.autoscaler)
        self.loop.watch(key, self.target, (Router(name, Peer(name, "10.0.0.1", 9080), {}),))

    async def query(self, routers: Sequence[Router]) -> Mapping[str, RouterSignals]:
        [router] = routers
        self.asked.append(router.name)
        if router.name in self.hang:
            await asyncio.Event().wait()
        if router.name in self.failing:
            raise RuntimeError("a bug")
        return {}


async def test_services_are_spread_evenly_over_a_period_whichever_come_and_go() -> None:
    many = Many(1000)
    assert {len(slot) for slot in many.loop._slots} == {1000 // SLOTS}
    for number in range(0, 1000, 2):
        many.loop.forget(Key("team", f"s{number}"))
    for number in range(500):
        many.add(f"n{number}")
    assert {len(slot) for slot in many.loop._slots} == {1000 // SLOTS}
    assert len(many.loop) == 1000


@pytest.fixture
async def quick(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[asyncio.Task[None]]]:
    monkeypatch.setattr(decision_loop, "PERIOD", 0.0)
    tasks: list[asyncio.Task[None]] = []
    yield tasks
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_router_that_hangs_delays_nobody_and_everything_ends_with_the_loop(
    quick: list[asyncio.Task[None]],
) -> None:
    many = Many(100, hang=frozenset({"s7", "s50"}))
    many.cluster.now += timedelta(seconds=PERIOD)
    quick.append(asyncio.create_task(many.loop.run()))
    for turn in (1, 2, 3):
        await until(lambda turn=turn: len(many.asked) == 98 * turn + 2)  # type: ignore[misc]
        many.cluster.now += timedelta(seconds=PERIOD)
    assert {many.asked.count(name) for name in many.hang} == {1}
    looking = list(many.loop._looking.values())
    assert len([task for task in looking if not task.done()]) >= 2
    quick[0].cancel()
    await asyncio.gather(quick[0], return_exceptions=True)
    assert all(task.cancelled() for task in looking if task.get_name() in ("look at team/s7", "look at team/s50"))
    assert not many.loop._looking


async def test_slots_are_begun_in_turn(quick: list[asyncio.Task[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    many, begun = Many(1), list[int]()
    monkeypatch.setattr(many.loop, "begin", begun.append)
    quick.append(asyncio.create_task(many.loop.run()))
    await until(lambda: len(begun) > 2 * SLOTS)
    assert begun[: 2 * SLOTS] == [*range(SLOTS), *range(SLOTS)]


async def test_a_look_that_fails_is_logged_and_the_next_ones_go_on(
    quick: list[asyncio.Task[None]], caplog: pytest.LogCaptureFixture
) -> None:
    many = Many(3)
    many.failing = {"s1"}
    many.cluster.now += timedelta(seconds=PERIOD)
    quick.append(asyncio.create_task(many.loop.run()))
    await until(lambda: len(set(many.asked)) == 3)
    await until(lambda: "team/s1: no decision: a bug" in caplog.text)
    many.cluster.now += timedelta(seconds=PERIOD)
    await until(lambda: many.asked.count("s0") == 2)
