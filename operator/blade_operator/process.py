"""The operator as a process on Kubernetes: follow everything, become the leader, then keep services as declared.

A standby does the first of these only, so that it can take over at once. A leader that loses its lease ends the
process.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

from blade_operator import health, metrics
from blade_operator.cluster.kubernetes.api import Api, ApiError
from blade_operator.cluster.kubernetes.cluster import KubernetesCluster
from blade_operator.cluster.kubernetes.election import Election
from blade_operator.cluster.kubernetes.gate import Gate, NotLeader
from blade_operator.cluster.kubernetes.lease import Lease, LeaseLost
from blade_operator.cluster.kubernetes.root_key import root_key
from blade_operator.fleet import Fleet
from blade_operator.internal_token import internal_token
from blade_operator.objects import Object, Ref
from blade_operator.observed import Observed
from blade_operator.plan import Plan
from blade_operator.reconcile import reconcile
from blade_operator.render import Defaults
from blade_operator.watch import Controller
from blade_protocol.labels import KIND, NAME

_log = logging.getLogger(__name__)

STUCK = 120.0
"""Seconds after which a look that has not ended means that the process is of no use any more."""
_PAUSE = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """What the command line decides."""

    namespace: str
    """The operator's own: of its Lease and its key."""
    namespaces: tuple[str, ...]
    """Those it works in; empty for all."""
    defaults: Defaults
    lease_name: str | None
    """None: this is the only process, and always the leader."""
    identity: str
    http_port: int
    workers: int


class Process:
    """Everything that runs. ``on_end`` is called when it ended by itself, which it only does for a ``reason``."""

    def __init__(self, configuration: Any, settings: Settings, on_end: Callable[[], None]) -> None:
        self._configuration = configuration
        self._settings = settings
        self._on_end = on_end
        self._resources = contextlib.AsyncExitStack()
        self._task: asyncio.Task[None] | None = None
        self._election: Election | None = None
        self._controller: Controller | None = None
        self._key = b""
        self.failed = False

    async def start(self) -> None:
        """Begin; returns at once."""
        settings, enter = self._settings, self._resources.enter_async_context
        self._gate = Gate()
        self._api = await enter(Api(self._configuration, self._gate))
        self._fleet = await enter(Fleet(token=self._token))
        self._cluster = KubernetesCluster(self._api, settings.namespaces)
        if settings.lease_name is not None:
            place = (settings.namespace, settings.lease_name, settings.identity)
            election = Election(
                lambda: Api(self._configuration, self._gate), lambda api: Lease(api, self._gate, *place)
            )
            self._election = await enter(election)
        if settings.http_port:
            await enter(health.serve(settings.http_port, self._healthy, self._ready))
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End everything; the lease is free afterwards."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._gate.shut()
        if self._election is not None:
            await self._election.release()
        await self._resources.aclose()

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._cluster.follow())
                group.create_task(self._lead())
        except* LeaseLost as lost:
            self.failed = True
            _log.error("no longer the leader: %s; this process ends", _cause(lost))
        except* Exception as errors:
            self.failed = True
            _log.error("the operator failed", exc_info=_cause(errors))
        finally:
            self._gate.shut()
            self._on_end()

    async def _lead(self) -> None:
        if self._election is None:
            self._gate.open()
            metrics.LEADER.set(1)
            await self._work()
            return
        await self._election.acquire()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._election.hold())
            group.create_task(self._work())

    async def _work(self) -> None:
        self._key = await self._find_key()
        defaults = dataclasses.replace(
            self._settings.defaults, internal_key=self._key, operator_namespace=self._settings.namespace
        )

        def decide(observed: Observed, now: datetime) -> Plan:
            return reconcile(observed, now, defaults)

        self._controller = Controller(self._cluster, self._fleet, decide, self._settings.workers)
        await self._controller.run()

    async def _find_key(self) -> bytes:
        while True:
            try:
                return await root_key(self._api, self._settings.namespace)
            except (ApiError, NotLeader, ValueError) as error:
                _log.error("the key of the internal tokens: %s; again in %.0f s", error, _PAUSE)
                await asyncio.sleep(_PAUSE)

    def _token(self, pod: Object) -> str | None:
        """What opens the internal port of ``pod``."""
        metadata = pod["metadata"]
        name = metadata["labels"][NAME]
        record = self._cluster.records.get(Ref(KIND, metadata["namespace"], name))
        if record is None or not self._key:
            return None
        return internal_token(self._key, metadata["namespace"], name, record.unpack()["metadata"]["uid"])

    def _healthy(self) -> str:
        """The loop turns, or it would not answer; what else must hold."""
        if self._task is None or self._task.done():
            return "the operator has ended"
        if self._controller is not None and self._controller.longest_look > STUCK:
            return f"a look has taken {self._controller.longest_look:.0f} s"
        return ""

    def _ready(self) -> str:
        unseen = self._cluster.unseen
        return f"waiting for the first lists: {', '.join(unseen)}" if unseen else ""


def _cause(error: BaseException) -> BaseException:
    """The first error in a group of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
