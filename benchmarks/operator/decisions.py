"""What deciding on the engines of 1,000 services every 10 s costs the operator: CPU, and writes of statuses.

First half an hour of simulated time, in which the load of every service drifts and jitters: the operator's own
decisions, and what is written of them. Then the operator's decision loop in real time, for the same services as they
are then: it asks two routers of each, on sockets of another process with the operator's own client, and decides.
The CPU is all of this process, the loop's and the sockets' share included; what it does in place of a reconcile that
the loop asks for is counted apart. Such a reconcile as a whole is not in it: how many are asked for is a figure.

    python -m benchmarks.operator.decisions        QUICK=1 for 100 services, multiplied by ten
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from benchmarks.figures import QUICK, Figure, report
from benchmarks.operator.router_process import router_process
from benchmarks.operator.scaled_service import ROUTERS, Load, Service, pod
from blade_operator.controller.controller import IDLE_RESYNC, MAX_RESYNC_RATE
from blade_operator.controller.decision_loop import DecisionLoop
from blade_operator.controller.work_queue import Priority
from blade_operator.descriptors import raise_limit
from blade_operator.fleet import Fleet, Router, started_routers
from blade_operator.model.objects import Key
from blade_operator.model.scale_target import ScaleTarget
from blade_operator.reconcile.scaling.look import PERIOD, look
from blade_operator.scaling.autoscaler import Autoscaler
from blade_protocol.labels import NAME, ROLE_ROUTER
from blade_protocol.signals import RouterSignals

SERVICES = 100 if QUICK else 1000
SECONDS = 900.0 if QUICK else 1800.0
"""Of simulated time."""
PERIODS = 2 if QUICK else 6
"""Of real time, after one in which connections are made."""
QUERIES = 500
CORE_TARGET = 10.0
"""Percent of one core."""


class Services:
    """All services, and what is remembered of each. First in simulated time."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.all = [Service(number) for number in range(SERVICES)]
        self.loads = [Load(number, self.now.timestamp()) for number in range(SERVICES)]
        self.autoscalers: dict[int, Autoscaler] = {}
        self.targets: dict[int, ScaleTarget] = {}
        for index in range(SERVICES):
            self.reconcile(index, self.now, self._signals(index))
            self.all[index].writes = 0  # everything was written for the first time

    def reconcile(self, index: int, now: datetime, signals: Mapping[str, RouterSignals] | None = None) -> None:
        """As often as the controller would at once."""
        while True:
            found = self.all[index].reconcile(self.autoscalers.get(index), now, signals)
            assert found.autoscaler is not None
            assert found.target is not None
            self.autoscalers[index], self.targets[index] = found.autoscaler, found.target
            if not found.requeue:
                return

    def simulate(self) -> list[Figure]:
        """Each service is looked at every period, and reconciled when the look says so, or for a resync."""
        looks, cpu, asked = round(SECONDS / PERIOD), 0.0, 0
        resync = round(max(IDLE_RESYNC, SERVICES / MAX_RESYNC_RATE) / PERIOD)
        for turn in range(looks):
            self.now += timedelta(seconds=PERIOD)
            for index in range(SERVICES):
                signals = self._signals(index)
                begin = time.process_time()
                found = look(self.targets[index], self.autoscalers[index], signals, self.now)
                cpu += time.process_time() - begin
                self.autoscalers[index] = found.autoscaler
                if found.scales or found.publishes:
                    asked += 1
                if found.scales or found.publishes or (turn + index) % resync == 0:
                    self.reconcile(index, self.now)
        writes = [60 * service.writes / SECONDS for service in self.all]
        return [
            Figure("decision_cpu", 1e3 * cpu / looks / SERVICES, "ms"),
            Figure("reconciles_asked_for", 60 * asked / SECONDS / SERVICES, "a service/min"),
            Figure("status_writes_mean", sum(writes) / SERVICES, "writes/min"),
            Figure("status_writes_most", max(writes), "writes/min", "<=", 1.0),
        ]

    def _signals(self, index: int) -> dict[str, RouterSignals]:
        signals = self.loads[index].signals(self.now.timestamp(), self.all[index].engines)
        return {each["metadata"]["name"]: signals for each in self.all[index].routers}


class RealTime:
    """The decision loop, asking routers; the services go on from where they are."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._offset = services.now.timestamp() - time.monotonic()
        self._decisions = 0
        self._reconcile_cpu = 0.0
        self._routers: dict[int, tuple[Router, ...]] = {}

    async def measure(self) -> list[Figure]:
        """Some periods."""
        services = self._services
        loads = {service.name: load for service, load in zip(services.all, services.loads, strict=True)}
        engines = {service.name: service.engines for service in services.all}
        with router_process(loads, engines, self._offset) as port:
            async with Fleet(5.0, lambda router: router["metadata"]["labels"][NAME]) as fleet:
                self._fleet = fleet
                self._loop = DecisionLoop(self._query, self._enqueue, self._now)
                for index, service in enumerate(services.all):
                    pods = [pod(ROLE_ROUTER, each["metadata"]["name"], service.name, port) for each in service.routers]
                    self._loop.remember(Key("team", str(index)), services.autoscalers[index])
                    self._routers[index] = started_routers(pods)
                    self._loop.watch(Key("team", str(index)), services.targets[index], self._routers[index])
                running = asyncio.create_task(self._loop.run())
                await asyncio.sleep(1.1 * PERIOD)
                begin, before = time.process_time(), time.monotonic()
                decided, apart = self._decisions, self._reconcile_cpu
                await asyncio.sleep(PERIODS * PERIOD)
                cpu = time.process_time() - begin - (self._reconcile_cpu - apart)
                seconds, decisions = time.monotonic() - before, self._decisions - decided
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
        assert decisions >= 0.97 * SERVICES * PERIODS, f"{decisions} decisions in {seconds:.0f} s"
        return [
            Figure("spacing", SERVICES * seconds / decisions, "s"),
            Figure("look_cpu", 1e3 * cpu / decisions, "ms"),
            Figure("decision_loop_core", 100 * cpu / seconds * 1000 / SERVICES, "% of a core", "<=", CORE_TARGET),
        ]

    async def _query(self, routers: Sequence[Router]) -> Mapping[str, RouterSignals]:
        found = await self._fleet.query_signals(routers)
        self._decisions += len(found) == ROUTERS  # all must respond but for a few: others may use this machine
        return found

    def _enqueue(self, key: Key, priority: Priority) -> None:
        begin, index = time.process_time(), int(key.name)
        known = self._loop.remembered(key)
        assert known is not None
        self._services.autoscalers[index] = known
        self._services.reconcile(index, self._now())
        self._loop.remember(key, self._services.autoscalers[index])
        self._loop.watch(key, self._services.targets[index], self._routers[index])
        self._reconcile_cpu += time.process_time() - begin

    def _now(self) -> datetime:
        return datetime.fromtimestamp(time.monotonic() + self._offset, UTC)


async def query() -> Figure:
    """The operator's CPU for one router that is asked for its signals, by itself."""
    with router_process({"s": Load(0, 0.0)}, {"s": 1}, 0.0) as port:
        async with Fleet(5.0, lambda router: "s") as fleet:
            routers = started_routers([pod(ROLE_ROUTER, f"router-{index}", "s", port) for index in range(ROUTERS)])
            assert len(await fleet.query_signals(routers)) == ROUTERS
            begin = time.process_time()
            for _ in range(QUERIES):
                await fleet.query_signals(routers)
            return Figure("router_query_cpu", 1e3 * (time.process_time() - begin) / QUERIES / ROUTERS, "ms")


def main() -> int:
    """Measure, print and write the figures."""
    raise_limit()
    services = Services()
    figures = services.simulate()
    figures.append(asyncio.run(query()))
    figures += asyncio.run(RealTime(services).measure())
    return report("operator_decisions", figures)


if __name__ == "__main__":
    sys.exit(main())
