"""The controller: a service changed → observe it → reconcile (a pure decision) → execute the plan.

Level-triggered: what changed does not matter, only which service. Every step may be repeated, and the process may die
anywhere: the next reconcile ends in the same state.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from blade_operator import metrics
from blade_operator.adapters.object_status import changed, updated
from blade_operator.cluster import Cluster, Rejected
from blade_operator.controller.adapter_attempts import AdapterAttempts
from blade_operator.controller.attempts import Attempts, Write
from blade_operator.controller.decision_loop import DecisionLoop
from blade_operator.controller.demand_watch import DemandWatch
from blade_operator.controller.service_reports import ServiceReports
from blade_operator.controller.work_queue import Priority, WorkQueue
from blade_operator.fleet import Fleet, Router, started_routers
from blade_operator.model.objects import Key, Object, Ref
from blade_operator.model.observed import Observed, has_canary, needs_signals
from blade_operator.model.plan import Action, DrainPod, LoadAdapter, Plan, Prune, UnloadAdapter
from blade_operator.reconcile.scaling.look import is_decided
from blade_protocol.adapters import LoadAdapterRequest
from blade_protocol.labels import ADAPTER_KIND

_log = logging.getLogger(__name__)

Reconcile = Callable[[Observed, datetime], Plan]

DEBOUNCE = 0.05
"""Seconds to wait after a change, so that a burst of changes leads to one reconcile."""
BUSY_RESYNC = 3.0
IDLE_RESYNC = 20.0
"""Seconds until the resync of a service with and without requests, when nothing changes."""
MAX_RESYNC_RATE = 20.0
"""Resyncs per second, at most, of services that need no write: with very many services each has to wait longer."""
OBSERVERS_PER_WORKER = 8
"""Services whose engines are queried, for each that is reconciled: an unresponsive engine delays no other service."""
APPLIED_FIRST = frozenset(
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
"""Kinds that are applied before the others, because pods need them."""


class Controller:
    """Keeps every service of a cluster as declared; reconciles ``workers`` services at a time.

    ``is_foreign``: whether a service is another installation's, whose engines are not queried.
    """

    def __init__(
        self,
        cluster: Cluster,
        fleet: Fleet,
        reconcile: Reconcile,
        workers: int = 4,
        is_foreign: Callable[[Observed], bool] = lambda observed: False,
    ) -> None:
        self._cluster = cluster
        self._fleet = fleet
        self._reconcile = reconcile
        self._workers = workers
        self._is_foreign = is_foreign
        self._reconciling = asyncio.Semaphore(workers)
        self._queue: WorkQueue[Key] = WorkQueue()
        self._attempts: defaultdict[Key, Attempts] = defaultdict(Attempts)
        self._adapter_attempts: defaultdict[Key, AdapterAttempts] = defaultdict(AdapterAttempts)
        self._services: set[Key] = set()
        self._decisions = DecisionLoop(lambda routers: fleet.query_signals(routers), self._decided)
        self._demand = DemandWatch(
            lambda router: fleet.wait_for_demand(router), lambda key: self._queue.add(key, Priority.SCALING)
        )
        self._reports = ServiceReports(lambda router, report: fleet.report_service(router, report))
        self._started_at: dict[Key, float] = {}
        """When each reconcile that is still running began."""

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._enqueue_changes())
                group.create_task(self._decisions.run())
                for _ in range(self._workers * OBSERVERS_PER_WORKER):
                    group.create_task(self._run_worker())
        finally:
            self._queue.close()
            self._demand.close()

    @property
    def longest_reconcile(self) -> float:
        """Seconds that the longest of the reconciles now running has taken so far; 0 when none runs."""
        return max((time.monotonic() - start for start in self._started_at.values()), default=0.0)

    async def _enqueue_changes(self) -> None:
        async for key in self._cluster.changes():
            self._queue.add_after(key, DEBOUNCE)

    async def _run_worker(self) -> None:
        while True:
            key = await self._queue.get()
            metrics.QUEUE_DEPTH.set(len(self._queue))
            try:
                requeue_after = await self.reconcile(key)
                self._queue.forget(key)
                if requeue_after is not None:
                    # What is due sooner than any resync goes on with something.
                    priority = Priority.RESYNC if requeue_after >= BUSY_RESYNC else Priority.CHANGE
                    self._queue.add_after(key, requeue_after * random.uniform(0.9, 1.1), priority)
            except Exception as error:
                metrics.FAILURES.inc()
                seconds = self._queue.add_rate_limited(key, getattr(error, "retry_after", None) or 0.0)
                _log.error("%s: %s; next try in %.1f s", key, error, seconds, exc_info=_log.isEnabledFor(logging.DEBUG))
            finally:
                self._queue.done(key)

    def _decided(self, key: Key, priority: Priority) -> None:
        """The decision loop asks for a reconcile. One that failed waits for its back-off."""
        if not self._queue.backs_off(key):
            self._queue.add(key, priority)

    def _asks_routers(self, key: Key, service: Object) -> bool:
        """Whether a reconcile needs the routers' signals, which the decision loop asks for otherwise."""
        if not needs_signals(service):
            return False
        return has_canary(service) or not is_decided(self._decisions.remembered(key), service, time.time())

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile one service and execute the plan. Returns the seconds until its resync, None when it is gone."""
        observed = await self._cluster.observe(key)
        if observed is None:
            await self._release_adapters(key)
            self._forget(key)
            return None
        pods = () if self._is_foreign(observed) else observed.pods
        asks_routers = self._asks_routers(key, observed.service)
        report = await self._fleet.query(pods, asks_routers)
        async with self._reconciling:
            observed = await self._cluster.observe(key)  # querying the engines may have taken a while
            if observed is None:
                self._forget(key)
                return None
            rejected = self._attempts[key].refused
            observed = dataclasses.replace(
                observed,
                engines=report.engines,
                downloads=report.downloads,
                adapters=report.adapters,
                refused_adapters=self._adapter_attempts[key].refused,
                unauthorized=report.unauthorized,
                signals=report.signals,
                signals_queried=asks_routers,
                autoscaler=self._decisions.remembered(key),
                rejected=rejected,
            )
            with self._timed(key):
                plan = self._reconcile(observed, datetime.now(UTC))
                self._decisions.remember(key, plan.autoscaler)
                routers = started_routers(observed.pods)
                self._decisions.watch(key, plan.scale_target, routers if plan.scale_target is not None else ())
                await self._execute(key, observed, plan)
        if pods:  # another installation tells its own
            await self._report(key, observed, plan, routers)
        self._demand.watch(key, routers if plan.wakes_on_demand else ())
        busy = any(state.running or state.waiting for state in report.engines.values())
        resync = BUSY_RESYNC if busy else IDLE_RESYNC
        sooner = (plan.requeue_after, self._attempts[key].retry_after)
        resync = min([resync, *(seconds for seconds in sooner if seconds is not None)])
        return resync if _has_work(plan) else max(resync, len(self._services) / MAX_RESYNC_RATE)

    async def _report(self, key: Key, observed: Observed, plan: Plan, routers: Sequence[Router]) -> None:
        """Tell the routers how the service is now."""
        service, now = observed.service, datetime.now(UTC)
        status = plan.status if plan.status is not None else service.get("status") or {}
        self._reports.record(key, plan.events, now)
        try:
            await self._reports.send(key, service, status, observed.pods, routers, now)
        except Exception:  # whatever objects look like, nothing else depends on what a page shows
            _log.exception("%s: its routers could not be told how it is", key)

    @contextmanager
    def _timed(self, key: Key) -> Iterator[None]:
        self._services.add(key)
        metrics.SERVICES.set(len(self._services))
        self._started_at[key] = time.monotonic()
        try:
            with metrics.RECONCILE.time():
                yield
        finally:
            del self._started_at[key]

    def _forget(self, key: Key) -> None:
        self._services.discard(key)
        self._demand.watch(key, {})
        self._attempts.pop(key, None)
        self._adapter_attempts.pop(key, None)
        self._decisions.forget(key)
        self._reports.forget(key)
        metrics.SERVICES.set(len(self._services))

    async def _execute(self, key: Key, observed: Observed, plan: Plan) -> None:
        """Execute ``plan`` in this order: claim, drain, replace, apply, prune, delete, record events, write the
        statuses."""
        before = observed.service.get("status") or {}
        if plan.claim is not None and not await self._cluster.claim(key, before, plan.claim):
            return
        pods = {pod["metadata"]["name"]: pod for pod in observed.pods}
        adapters = self._adapter_attempts[key]
        loading = {
            (pod, each.name) for pod, listed in observed.adapters.items() for each in listed if each.state == "loading"
        }
        wanted = {(each.pod, each.name) for each in plan.actions if isinstance(each, LoadAdapter)}
        adapters.retain(loading | wanted)
        actions = [action for action in plan.actions if action.pod in pods]
        await asyncio.gather(*(self._act(pods[action.pod], action, adapters) for action in actions))
        self._attempts[key].retain([*plan.replace, *plan.apply, *plan.prune])
        await _gather(self._replace(key, obj) for obj in plan.replace)
        await _gather(self._apply(key, obj) for obj in plan.apply if obj["kind"] in APPLIED_FIRST)
        await _gather(self._apply(key, obj) for obj in plan.apply if obj["kind"] not in APPLIED_FIRST)
        await _gather(self._prune(key, prune) for prune in plan.prune)
        await _gather(self._cluster.delete(ref) for ref in plan.delete)
        for event in plan.events:
            await self._cluster.emit(key, event)
        for name, entry in plan.lora_adapters.items():
            await self._note_adapter(key, name, entry)
        if plan.status is not None:
            await self._cluster.write_status(key, plan.status)

    async def _note_adapter(self, key: Key, name: str, entry: Object | None) -> None:
        """Let the status of a LoRAAdapter say ``entry`` of the service."""
        await self._cluster.update_adapter_status(
            Ref(ADAPTER_KIND, key.namespace, name), lambda obj: updated(obj, key.name, entry, datetime.now(UTC))
        )

    async def _release_adapters(self, key: Key) -> None:
        """No LoRAAdapter says anything of a service that is gone."""
        for name in changed(key.name, self._cluster.lora_adapters(key.namespace), {}):
            await self._note_adapter(key, name, None)

    async def _act(self, pod: Object, action: Action, adapters: AdapterAttempts) -> None:
        match action:
            case DrainPod(draining=draining, standby=standby):
                await self._fleet.drain(pod, draining, standby=standby)
            case LoadAdapter() if adapters.backs_off(action):
                pass
            case LoadAdapter(name=name, path=path, pinned=pinned, preload=preload):
                request = LoadAdapterRequest(
                    lora_name=name, lora_path=path, pinned=pinned, wait=False, replace=True, register_only=not preload
                )
                adapters.record(action, await self._fleet.load_adapter(pod, request))
            case UnloadAdapter(name=name):
                await self._fleet.unload_adapter(pod, name)

    async def _apply(self, key: Key, obj: Object) -> None:
        await self._attempt(key, obj, Ref.of(obj), lambda: self._cluster.apply(obj))

    async def _replace(self, key: Key, obj: Object) -> None:
        await self._attempt(key, obj, Ref.of(obj), lambda: self._cluster.replace(obj))

    async def _prune(self, key: Key, prune: Prune) -> None:
        await self._attempt(key, prune, prune.ref, lambda: self._cluster.prune(prune))

    async def _attempt(self, key: Key, what: Write, ref: Ref, write: Callable[[], Awaitable[None]]) -> None:
        attempts = self._attempts[key]
        if attempts.backs_off(what):
            return
        try:
            await write()
            attempts.record(what)
        except Rejected as error:
            _log.warning("%s: %s %s is refused: %s", key, ref.kind, ref.name, error)
            attempts.record(what, str(error))


def _has_work(plan: Plan) -> bool:
    return bool(
        plan.claim
        or plan.replace
        or plan.apply
        or plan.prune
        or plan.delete
        or plan.events
        or plan.actions
        or plan.lora_adapters
        or plan.status is not None
    )


async def _gather(steps: Iterable[Awaitable[None]]) -> None:
    """Run all steps concurrently; raises the first error once all have ended."""
    for result in await asyncio.gather(*steps, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
