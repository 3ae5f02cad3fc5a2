"""The control loop: something changed → look at the whole service → decide (`reconcile`) → carry it out.

Level-triggered: what changed does not matter, only which service. Every step may be repeated, and the loop may die
anywhere: the next look ends in the same state.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from blade_operator.cluster import Cluster
from blade_operator.fleet import Fleet
from blade_operator.objects import Key
from blade_operator.observed import Observed
from blade_operator.plan import Plan
from blade_operator.workqueue import WorkQueue

_log = logging.getLogger(__name__)

Reconcile = Callable[[Observed, datetime], Plan]

SETTLE = 0.05
"""Seconds to wait after a change, so that a burst of them is one look."""
BUSY_LOOK = 3.0
IDLE_LOOK = 20.0
"""Seconds until the next look at a service with and without requests, when nothing changes."""


class Controller:
    """Keeps every service of a cluster as declared, ``workers`` of them at a time."""

    def __init__(self, cluster: Cluster, fleet: Fleet, reconcile: Reconcile, workers: int = 4) -> None:
        self._cluster = cluster
        self._fleet = fleet
        self._reconcile = reconcile
        self._workers = workers
        self._queue: WorkQueue[Key] = WorkQueue()

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._listen())
                for _ in range(self._workers):
                    group.create_task(self._work())
        finally:
            self._queue.close()

    async def _listen(self) -> None:
        async for key in self._cluster.changes():
            self._queue.add_after(key, SETTLE)

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            try:
                again = await self.look(key)
                self._queue.forget(key)
                if again is not None:
                    self._queue.add_after(key, again)
            except Exception as error:
                seconds = self._queue.retry(key)
                _log.error("%s: %s; next try in %.1f s", key, error, seconds, exc_info=_log.isEnabledFor(logging.DEBUG))
            finally:
                self._queue.done(key)

    async def look(self, key: Key) -> float | None:
        """One look at one service, with everything it leads to. Returns the seconds until the next one is due."""
        observed = await self._cluster.observe(key)
        if observed is None:
            return None
        engines, downloads = await self._fleet.ask(observed.pods)
        observed = dataclasses.replace(observed, engines=engines, downloads=downloads)
        plan = self._reconcile(observed, datetime.now(UTC))
        await self._carry_out(key, observed, plan)
        busy = any(state.running or state.waiting for state in observed.engines.values())
        due = BUSY_LOOK if busy else IDLE_LOOK
        return due if plan.requeue_after is None else min(due, plan.requeue_after)

    async def _carry_out(self, key: Key, observed: Observed, plan: Plan) -> None:
        """In this order: a pod is told to drain before it is deleted; the status speaks last."""
        pods = {pod["metadata"]["name"]: pod for pod in observed.pods}
        await asyncio.gather(*(self._fleet.drain(pods[action.pod]) for action in plan.actions if action.pod in pods))
        for obj in plan.apply:
            await self._cluster.apply(obj)
        for ref in plan.delete:
            await self._cluster.delete(ref)
        for event in plan.events:
            await self._cluster.emit(key, event)
        if plan.status is not None:
            await self._cluster.write_status(key, plan.status)
