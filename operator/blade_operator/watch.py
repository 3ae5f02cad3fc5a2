"""The control loop: something changed → look at the whole service → decide (`reconcile`) → carry it out.

Level-triggered: what changed does not matter, only which service. Every step may be repeated, and the loop may die
anywhere: the next look ends in the same state.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from blade_operator import metrics
from blade_operator.attempts import Attempts
from blade_operator.cluster import Cluster, Rejected
from blade_operator.fleet import Fleet
from blade_operator.objects import Key, Object
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
ROUTINE_LOOKS = 20.0
"""Looks a second, at most, at services where nothing is to do: with very many of them each has to wait longer."""
ASKING = 8
"""Services whose engines are waited for, for each that is acted on: an engine that does not answer delays no other."""
FIRST = frozenset(
    {
        "ServiceAccount",
        "Secret",
        "Role",
        "PersistentVolumeClaim",
        "ConfigMap",
        "ControllerRevision",
        "NetworkPolicy",
    }
)
"""Kinds that are written before those whose pods need them."""


class Controller:
    """Keeps every service of a cluster as declared, ``workers`` of them at a time."""

    def __init__(self, cluster: Cluster, fleet: Fleet, reconcile: Reconcile, workers: int = 4) -> None:
        self._cluster = cluster
        self._fleet = fleet
        self._reconcile = reconcile
        self._workers = workers
        self._acting = asyncio.Semaphore(workers)
        self._queue: WorkQueue[Key] = WorkQueue()
        self._attempts: defaultdict[Key, Attempts] = defaultdict(Attempts)
        self._known: set[Key] = set()
        self._since: dict[Key, float] = {}
        """When the deciding and writing began that goes on now."""

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._listen())
                for _ in range(self._workers * ASKING):
                    group.create_task(self._work())
        finally:
            self._queue.close()

    @property
    def longest_look(self) -> float:
        """Seconds since the oldest look that still decides and writes began to; 0 when there is none."""
        return max((time.monotonic() - since for since in self._since.values()), default=0.0)

    async def _listen(self) -> None:
        async for key in self._cluster.changes():
            self._queue.add_after(key, SETTLE)

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            metrics.QUEUE_DEPTH.set(len(self._queue))
            try:
                again = await self.look(key)
                self._queue.forget(key)
                if again is not None:
                    self._queue.add_after(key, again * random.uniform(0.9, 1.1), routine=True)
            except Exception as error:
                metrics.FAILURES.inc()
                seconds = self._queue.retry(key, getattr(error, "retry_after", None) or 0.0)
                _log.error("%s: %s; next try in %.1f s", key, error, seconds, exc_info=_log.isEnabledFor(logging.DEBUG))
            finally:
                self._queue.done(key)

    async def look(self, key: Key) -> float | None:
        """One look at one service, with everything it leads to. Returns the seconds until the next one is due."""
        observed = await self._cluster.observe(key)
        if observed is None:
            self._forget(key)
            return None
        engines, downloads = await self._fleet.ask(observed.pods)
        async with self._acting:
            observed = await self._cluster.observe(key)  # asking may have taken a while
            if observed is None:
                self._forget(key)
                return None
            rejected = self._attempts[key].refused
            observed = dataclasses.replace(observed, engines=engines, downloads=downloads, rejected=rejected)
            with self._timed(key):
                plan = self._reconcile(observed, datetime.now(UTC))
                await self._carry_out(key, observed, plan)
        busy = any(state.running or state.waiting for state in engines.values())
        due = BUSY_LOOK if busy else IDLE_LOOK
        sooner = (plan.requeue_after, self._attempts[key].due)
        due = min([due, *(seconds for seconds in sooner if seconds is not None)])
        return due if _acts(plan) else max(due, len(self._known) / ROUTINE_LOOKS)

    @contextmanager
    def _timed(self, key: Key) -> Iterator[None]:
        self._known.add(key)
        metrics.SERVICES.set(len(self._known))
        self._since[key] = time.monotonic()
        try:
            with metrics.RECONCILE.time():
                yield
        finally:
            del self._since[key]

    def _forget(self, key: Key) -> None:
        self._known.discard(key)
        self._attempts.pop(key, None)
        metrics.SERVICES.set(len(self._known))

    async def _carry_out(self, key: Key, observed: Observed, plan: Plan) -> None:
        """In this order: a pod is told to drain before it is deleted; the status speaks last."""
        pods = {pod["metadata"]["name"]: pod for pod in observed.pods}
        await asyncio.gather(*(self._fleet.drain(pods[action.pod]) for action in plan.actions if action.pod in pods))
        self._attempts[key].keep_only(plan.apply)
        await _all(self._apply(key, obj) for obj in plan.apply if obj["kind"] in FIRST)
        await _all(self._apply(key, obj) for obj in plan.apply if obj["kind"] not in FIRST)
        await _all(self._cluster.delete(ref) for ref in plan.delete)
        for event in plan.events:
            await self._cluster.emit(key, event)
        if plan.status is not None:
            await self._cluster.write_status(key, plan.status)

    async def _apply(self, key: Key, obj: Object) -> None:
        attempts = self._attempts[key]
        if attempts.holds_back(obj):
            return
        try:
            await self._cluster.apply(obj)
            attempts.add(obj)
        except Rejected as error:
            _log.warning("%s: %s %s is refused: %s", key, obj["kind"], obj["metadata"]["name"], error)
            attempts.add(obj, str(error))


def _acts(plan: Plan) -> bool:
    return bool(plan.apply or plan.delete or plan.events or plan.actions or plan.status is not None)


async def _all(steps: Iterable[Awaitable[None]]) -> None:
    """Carry all out at once; raises the first error when all have ended."""
    for result in await asyncio.gather(*steps, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
