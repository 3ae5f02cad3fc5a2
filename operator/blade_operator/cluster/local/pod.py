"""One pod: runs its init containers in order, then the main ones, until it is deleted; publishes its status."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from blade_operator.cluster.local import clock, pod_status
from blade_operator.cluster.local.container import Container, PodContext
from blade_operator.cluster.local.errors import ContainerConfigError
from blade_operator.cluster.local.events import Events
from blade_operator.cluster.local.listeners import Listeners
from blade_operator.cluster.local.store import Store
from blade_operator.cluster.local.volumes import Volumes
from blade_operator.model.objects import Object, Ref

_log = logging.getLogger(__name__)

DRAIN_NOTICE = 0.5
"""Seconds between marking a terminating pod as draining and its SIGTERM: routers read the endpoints every 0.2 s."""


class PodWorker:
    """Runs one pod. ``start`` it once; ``terminate`` it when it is deleted, or ``detach`` to leave it running."""

    def __init__(
        self,
        pod: Object,
        folder: Path,
        claims: Path,
        store: Store,
        events: Events,
        inherited: Callable[[], Mapping[str, str]],
        listeners: Listeners,
    ) -> None:
        self._pod = pod
        self._ref = Ref.of(pod)
        self._folder = folder
        self._store = store
        self._events = events
        self._volumes = Volumes(pod, folder / "volumes", claims, self._lookup)
        context = PodContext(
            pod=pod,
            folder=folder,
            lookup=self._lookup,
            mounts=self._volumes.mounts,
            inherited=inherited,
            listeners=listeners,
            replace=self._replace,
            changed=self._publish,
            event=self._event,
        )
        spec, status = pod["spec"], copy.deepcopy(pod.get("status", {}))
        known = {entry["name"]: entry for entry in status.get("containerStatuses", [])}
        known_init = {entry["name"]: entry for entry in status.get("initContainerStatuses", [])}
        init = spec.get("initContainers", [])
        waiting = "PodInitializing" if init else "ContainerCreating"
        self._status = status
        self._init = [Container(each, known_init.get(each["name"]), context, waiting=waiting) for each in init]
        self._main = [Container(each, known.get(each["name"]), context, waiting=waiting) for each in spec["containers"]]
        self._ends = spec.get("restartPolicy") == "OnFailure"
        """Whether the pod ends when its programs have succeeded, as those of Jobs do."""
        self._run: asyncio.Task[None] | None = None
        self._end: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    def start(self) -> None:
        """Start the pod, or resume it where an earlier control loop stopped."""
        self._publish()
        self._run = asyncio.create_task(self._run_until_cancelled())

    def terminate(self, grace: float) -> None:
        """End the pod within ``grace`` seconds and remove it; a second call may shorten the grace period."""
        if grace <= 0:
            self._hurry.set()
        if self._end is None:
            self._end = asyncio.create_task(self._terminate(grace))

    def detach(self) -> None:
        """Stop managing the pod and leave its programs running."""
        for task in (self._run, self._end):
            if task is not None:
                task.cancel()
        for container in [*self._init, *self._main]:
            container.detach()

    def refresh(self) -> None:
        """Update mounted configuration and truncate logs."""
        if not self._folder.exists():  # the pod has ended and must not be created again
            return
        with contextlib.suppress(ContainerConfigError):  # mounted files stay until their source is back
            self._volumes.prepare()
        for container in [*self._init, *self._main]:
            container.logs.cut()

    async def _run_until_cancelled(self) -> None:
        while True:
            try:
                await self._run_containers()
                return
            except Exception:  # e.g. a full disk: the programs keep running, the next round adopts them
                _log.exception("pod %s: the local runtime failed; it tries again", self._ref.name)
                await asyncio.sleep(1.0)

    async def _run_containers(self) -> None:
        await self._prepare_volumes()
        for container in self._init:
            await container.run_until_success()
        await asyncio.gather(*((each.run_until_success() if self._ends else each.run_forever()) for each in self._main))

    async def _prepare_volumes(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                self._volumes.prepare()
                return
            except ContainerConfigError as error:
                self._event("Warning", "FailedMount", str(error))
                await asyncio.sleep(1.0)

    async def _terminate(self, grace: float) -> None:
        if self._run is not None:
            self._run.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._run
        if pod_status.is_ready({"status": self._status}) and not self._hurry.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_NOTICE):
                    await self._hurry.wait()
        self._event("Normal", "Killing", "Stopping the pod's containers")
        await asyncio.gather(*(container.stop(grace, self._hurry) for container in [*self._init, *self._main]))
        self._store.remove(self._ref)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _lookup(self, kind: str, name: str) -> Object | None:
        return self._store.get(Ref(kind, self._ref.namespace, name))

    def _publish(self) -> None:
        init, main = [each.status for each in self._init], [each.status for each in self._main]
        self._status = pod_status.pod_status(self._status, init, main, clock.stamp(clock.now()), ends=self._ends)
        self._store.write_status(self._ref, self._status)

    def _replace(self, reason: str) -> None:
        """Delete the pod at once: its Deployment makes another, with other ports."""
        self._event("Warning", "PortTaken", reason)
        self._store.delete(self._ref, grace=0)

    def _event(self, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        self._events.record(self._pod, kind, reason, message, "kubelet")
