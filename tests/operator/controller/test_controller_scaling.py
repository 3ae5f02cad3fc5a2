"""The controller and its decision loop: who asks routers, whose services are looked at, what a decision leads to."""

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from operator_support.local import until
from operator_support.scaled import CONCURRENCY, Scaled

from blade_operator import backoff
from blade_operator.controller import decision_loop
from blade_operator.controller.controller import Controller
from blade_operator.fleet import FleetReport, Router
from blade_operator.model.objects import Key, Object
from blade_operator.model.observed import Observed
from blade_operator.model.plan import EventRecord
from blade_operator.reconcile.installation import belongs_elsewhere
from blade_operator.reconcile.reconcile import reconcile
from blade_protocol.labels import INSTALLATION
from blade_protocol.signals import RouterSignals

KEY = Key("team", "qwen")


class Cluster:
    """One service that is scaled by load, whose objects stay as they are but for its status."""

    def __init__(self) -> None:
        self.scaled = Scaled(CONCURRENCY)
        self.scaled.autoscaler = None
        self.changed: asyncio.Queue[Key] = asyncio.Queue()
        self.gone = False
        self.statuses: list[Object] = []
        self.failing = False
        self.failures = self.observations = 0

    @property
    def replicas(self) -> int:
        """As the status says."""
        return int(self.scaled.scaling["replicas"])

    async def changes(self) -> AsyncIterator[Key]:
        while True:
            yield await self.changed.get()

    async def observe(self, key: Key) -> Observed | None:
        self.observations += 1
        return None if self.gone else self.scaled.observed()

    async def claim(self, key: Key, before: Object, status: Object) -> bool:
        self.scaled.service["status"] = status
        return True

    async def write_status(self, key: Key, status: Object) -> None:
        if self.failing:
            self.failures += 1
            raise RuntimeError("the API is away")
        self.statuses.append(status)
        self.scaled.service["status"] = status

    async def nothing(self, *_: Any) -> None:
        pass

    apply = replace = prune = delete = update_adapter_status = nothing

    def lora_adapters(self, namespace: str) -> tuple[Object, ...]:
        return ()

    async def emit(self, key: Key, event: EventRecord) -> None:
        pass


class Routers:
    """The fleet; ``asked`` says who asked the router: a reconcile or the loop."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.asked: list[str] = []

    async def query(self, pods: Iterable[Object], signals: bool = False) -> FleetReport:
        if not signals:
            return FleetReport()
        self.asked.append("reconcile")
        return FleetReport(signals=self._signals())

    async def query_signals(self, routers: Sequence[Router]) -> Mapping[str, RouterSignals]:
        self.asked.append("loop")
        return self._signals()

    async def wait_for_demand(self, router: Router) -> bool:
        return await asyncio.Event().wait()

    def _signals(self) -> Mapping[str, RouterSignals]:
        return self.cluster.scaled._signals(time.time())


@asynccontextmanager
async def running(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Cluster, Routers, Controller]]:
    """A controller of the installation ``ours``, whose loop looks at everything again and again, without a pause."""
    monkeypatch.setattr(decision_loop, "PERIOD", 0.0)
    monkeypatch.setattr(decision_loop, "is_due", lambda known, at: True)
    cluster = Cluster()
    routers = Routers(cluster)
    defaults = dataclasses.replace(cluster.scaled.defaults, installation="ours")
    controller = Controller(
        cluster,  # type: ignore[arg-type]
        routers,  # type: ignore[arg-type]
        lambda observed, now: reconcile(observed, now, defaults),
        is_foreign=lambda observed: belongs_elsewhere(observed, "ours"),
    )
    cluster.changed.put_nowait(KEY)
    task = asyncio.create_task(controller.run())
    try:
        yield cluster, routers, controller
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def looks(routers: Routers) -> int:
    return routers.asked.count("loop")


async def test_only_the_first_reconcile_asks_routers_and_the_loop_decides_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(monkeypatch) as (cluster, routers, _):
        await until(lambda: looks(routers) > 3)
        assert routers.asked[0] == "reconcile"
        cluster.scaled.running = 24
        await until(lambda: cluster.replicas == 3)
        await until(lambda: cluster.statuses[-1]["desiredReplicas"] == 3)
        written = next(each for each in cluster.statuses if each["scaling"]["replicas"] == 3)
        assert written["desiredReplicas"] == 1, "it is acted upon once it is there"
        observed = cluster.observations
        cluster.changed.put_nowait(KEY)
        await until(lambda: cluster.observations >= observed + 2)
        assert routers.asked.count("reconcile") == 1


async def test_looks_that_change_nothing_observe_and_write_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as (cluster, routers, controller):
        cluster.scaled.running = 3
        await until(lambda: looks(routers) > 3)
        await until(lambda: not controller._queue._processing and len(controller._queue) == 0)
        before = cluster.observations, len(cluster.statuses)
        seen = looks(routers)
        await until(lambda: looks(routers) > seen + 20)
        assert (cluster.observations, len(cluster.statuses)) == before


async def test_a_service_that_is_gone_or_another_installations_is_looked_at_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(monkeypatch) as (cluster, routers, controller):
        await until(lambda: looks(routers) > 3)
        cluster.scaled.service["metadata"]["annotations"] = {INSTALLATION: "theirs"}
        cluster.changed.put_nowait(KEY)
        await until(lambda: len(controller._decisions) == 0)
        await asyncio.sleep(0)
        seen = list(routers.asked)
        await asyncio.sleep(0.05)
        assert routers.asked == seen
        del cluster.scaled.service["metadata"]["annotations"]
        cluster.changed.put_nowait(KEY)
        await until(lambda: len(controller._decisions) == 1)
        cluster.gone = True
        cluster.changed.put_nowait(KEY)
        await until(lambda: len(controller._decisions) == 0)
        assert controller._decisions.remembered(KEY) is None


async def test_a_controller_that_ends_looks_at_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as (_, routers, controller):
        await until(lambda: looks(routers) > 3)
    seen = looks(routers)
    await asyncio.sleep(0.05)
    assert (looks(routers), controller._decisions._looking) == (seen, {})


async def test_a_decision_that_cannot_be_written_is_tried_again_after_a_back_off_and_not_at_every_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backoff, "BASE", 50.0)
    async with running(monkeypatch) as (cluster, routers, _):
        await until(lambda: looks(routers) > 3)
        cluster.failing, cluster.scaled.running = True, 24
        await until(lambda: cluster.failures)
        seen = looks(routers)
        await until(lambda: looks(routers) > seen + 20)
        assert (cluster.failures, cluster.replicas) == (1, 1)
        cluster.failing = False
        cluster.changed.put_nowait(KEY)
        await until(lambda: cluster.replicas == 3)


async def test_routers_of_a_service_with_prices_are_asked_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as (cluster, routers, _):
        cluster.scaled.edit(scaling={"mode": "Fixed"}, pricing={"currency": "EUR", "perEngineHour": "1"})
        await until(lambda: bool(cluster.statuses) and "cost" in cluster.statuses[-1])

        async def reconciled() -> int:
            observed = cluster.observations
            cluster.changed.put_nowait(KEY)
            await until(lambda: cluster.observations >= observed + 2)
            return routers.asked.count("reconcile")

        assert [await reconciled(), await reconciled()] == [1, 1]
        cluster.scaled.service["status"]["cost"]["observedAt"] = "2026-01-01T00:00:00Z"
        assert await reconciled() == 2
        assert looks(routers) == 0
