"""The local runtime: assembles the local cluster, and runs all its controllers once whenever anything changed."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from blade_operator.cluster.local import garbage
from blade_operator.cluster.local.cluster import LocalCluster
from blade_operator.cluster.local.deployments import Deployments
from blade_operator.cluster.local.endpoints import Endpoints
from blade_operator.cluster.local.events import Events
from blade_operator.cluster.local.jobs import Jobs
from blade_operator.cluster.local.kubelet import Kubelet
from blade_operator.cluster.local.layout import Layout, StateLock
from blade_operator.cluster.local.listeners import Listeners
from blade_operator.cluster.local.ports import require_free
from blade_operator.cluster.local.process import kill_strays
from blade_operator.cluster.local.scheduler import Scheduler
from blade_operator.cluster.local.services import Services
from blade_operator.cluster.local.stateful_sets import StatefulSets
from blade_operator.cluster.local.store import Store
from blade_operator.model.objects import Object, Ref

_log = logging.getLogger(__name__)

REFRESH = 1.0
"""Seconds between refreshes of mounted configuration and log sizes."""


class Runtime:
    """The whole local cluster on one state folder. ``start`` it, then either ``delete_everything`` or just die:
    the programs outlive it and the next runtime on the folder adopts them."""

    def __init__(self, layout: Layout, port: int) -> None:
        """Raises:
        StateInUse: another control loop runs on the folder.
        PortInUse: ``port`` belongs to a program that is not ours.
        """
        self.layout = layout
        self._lock = StateLock(layout)
        try:
            self.store = Store(layout.objects)
            self.events = Events(self.store)
            self._services = Services(self.store, port)
            if port not in self._services.assigned():
                require_free(port, "--port")
        except BaseException:
            self._lock.release()
            raise
        self.cluster = LocalCluster(self.store, self.events)
        self._deployments = Deployments(self.store, self.events, self._services)
        self._stateful_sets = StatefulSets(self.store, self.events, self._services)
        self._jobs = Jobs(layout, self.store, self.events, self._services)
        self._scheduler = Scheduler(self.store)
        self._endpoints = Endpoints(layout, self.store)
        self._listeners = Listeners(layout.root)
        self._kubelet = Kubelet(layout, self.store, self.events, self._listeners)
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Adopt running programs, then keep everything as the objects declare."""
        self._kubelet.sweep()
        self.store.subscribe(self._on_change)
        self._changed.set()
        self._tasks = [asyncio.create_task(self._control()), asyncio.create_task(self._refresh())]

    async def delete_everything(self, hurry: asyncio.Event) -> None:
        """Delete all objects, wait until every program has drained and ended; at once when ``hurry`` is set.

        Claims (downloaded models) stay.
        """
        for kind in ("LLMService", "Deployment", "StatefulSet", "Job"):
            for obj in self.store.find(kind):
                self.store.remove(Ref.of(obj))
        for pod in self.store.find("Pod"):
            self.store.delete(Ref.of(pod))
        hurried = False
        while pods := self.store.find("Pod"):
            if hurry.is_set() and not hurried:
                hurried = True
                for pod in pods:
                    self.store.delete(Ref.of(pod), grace=0)
            await asyncio.sleep(0.02)
        await self.close()
        kill_strays(self.layout.root)
        for obj in self.store.everything():
            self.store.remove(Ref.of(obj))
        self._endpoints.sync()

    async def close(self) -> None:
        """Stop controlling; running programs keep running."""
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks = []
        self._kubelet.detach()
        self._listeners.close()
        self._lock.release()

    def _on_change(self, _: Object) -> None:
        self._changed.set()

    async def _control(self) -> None:
        soon: float | None = None
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(soon):  # wait_for of Python 3.11 can lose a cancellation
                    await self._changed.wait()
            self._changed.clear()
            soon = None
            try:
                self._sync()
            except Exception:
                _log.exception("the local runtime failed; it tries again")
                soon = 1.0

    def _sync(self) -> None:
        garbage.collect(self.store)
        self._services.sync()
        self._deployments.sync()
        self._stateful_sets.sync()
        self._jobs.sync()
        self._scheduler.sync()
        self._endpoints.sync()  # before the kubelet: a terminating pod is marked draining, then it gets its SIGTERM
        self._kubelet.sync()

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH)
            self._kubelet.refresh()
            self._jobs.show_progress()
