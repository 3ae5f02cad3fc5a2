"""The operator as a process on Kubernetes: watch everything, become the leader, then keep services as declared.

A standby does the first of these only, so that it can take over at once. A leader that loses its lease ends the
process.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import urllib.request
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from blade_operator import metrics
from blade_operator.cluster.kubernetes.api import Api, ApiError
from blade_operator.cluster.kubernetes.cluster import KubernetesCluster
from blade_operator.cluster.kubernetes.election import Election
from blade_operator.cluster.kubernetes.fence import NotLeader, WriteFence
from blade_operator.cluster.kubernetes.heartbeat import Heartbeat
from blade_operator.cluster.kubernetes.lease import Lease, LeaseLost
from blade_operator.cluster.kubernetes.root_key import root_key
from blade_operator.cluster.kubernetes.watching.event_source import EventSource
from blade_operator.cluster.kubernetes.watching.supervisor import Supervisor
from blade_operator.cluster.kubernetes.watching.sweep import Sweeper
from blade_operator.controller import health
from blade_operator.controller.controller import Controller
from blade_operator.external_metrics.samples import Samples
from blade_operator.external_metrics.server import ExternalMetrics
from blade_operator.fleet import Fleet
from blade_operator.model.objects import Key, Object, Ref
from blade_operator.model.observed import Observed
from blade_operator.model.plan import Plan
from blade_operator.reconcile.installation import belongs_elsewhere
from blade_operator.reconcile.reconcile import reconcile
from blade_operator.render import Defaults
from blade_operator.render.internal_token import internal_token
from blade_protocol.labels import KIND, NAME

_log = logging.getLogger(__name__)

STUCK = 120.0
"""Seconds after which a reconcile that has not ended means that the process is of no use any more."""
PROBE_SECONDS = 4.0
"""Seconds within which a probe gets its result."""
CLEANUP_SECONDS = 3.0
"""Seconds that kopf gets to end in an orderly way."""
KEY_SECONDS = 60.0
"""Seconds between two looks at the root key."""
_PAUSE = 2.0
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opens URLs of this machine: never through the proxy that the environment may name."""


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
    installation: str
    """Name of this installation: namespace and name of its Lease, with a slash between."""
    identity: str
    http_port: int
    workers: int
    external_metrics_port: int = 0
    """0: the external metrics API is not served."""
    external_metrics_certificate: Path = Path()
    """The folder with its ``tls.crt`` and ``tls.key``."""


class Process:
    """Everything that runs. ``on_end`` is called when it ended by itself, which it only does for a ``reason``."""

    def __init__(self, configuration: Any, settings: Settings, on_end: Callable[[], None]) -> None:
        self._configuration = configuration
        self._settings = settings
        self._on_end = on_end
        self._resources = contextlib.AsyncExitStack()
        self._task: asyncio.Task[None] | None = None
        self._leading: asyncio.Task[None] | None = None
        self._stepping_down: asyncio.Task[None] | None = None
        self._election: Election | None = None
        self._controller: Controller | None = None
        self._external_metrics: ExternalMetrics | None = None
        self._key = b""
        self.failed = False

    async def start(self) -> None:
        """Begin; returns at once.

        Raises:
            OSError: a port is taken.
        """
        settings, enter = self._settings, self._resources.enter_async_context
        self._fence = WriteFence()
        self._api = await enter(Api(self._configuration, self._fence))
        self._fleet = await enter(Fleet(token=self._token))
        self._cluster = cluster = KubernetesCluster(self._api, settings.namespaces, settings.installation)
        self._sweeper = Sweeper(self._api, cluster.cache, cluster.scopes)
        self._source = EventSource(
            self._configuration, cluster.cache, self._sweeper.request, self._unhealthy, self._step_down
        )
        self._sweeper.on_rewritten = self._source.stop
        if settings.lease_name is not None:
            place = (settings.namespace, settings.lease_name, settings.identity)
            election = Election(
                lambda: Api(self._configuration, self._fence), lambda api: Lease(api, self._fence, *place)
            )
            self._election = await enter(election)
        if settings.http_port:
            loop = asyncio.get_running_loop()
            alive = functools.partial(self._liveness, loop)
            ready = functools.partial(_in_loop, loop, self._unready)
            self._resources.enter_context(health.serve(settings.http_port, alive, ready))
        if settings.external_metrics_port:
            query = functools.partial(self._fleet.query, signals=True)
            samples = Samples(cluster.observe, query, self._is_foreign)
            certificate, port = settings.external_metrics_certificate, settings.external_metrics_port
            external = ExternalMetrics(self._api, samples, self._services, certificate, port)
            self._external_metrics = self._resources.enter_context(external)
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End everything; the lease is free afterwards."""
        if self._task is not None:
            self._source.close()
            if self._source.liveness_url is not None:
                await asyncio.wait([self._task], timeout=CLEANUP_SECONDS)  # kopf's clean-up handler steps down
            await self._step_down()
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._resources.aclose()

    async def _step_down(self) -> None:
        """Write nothing more and let another process take over at once."""
        if self._stepping_down is None:
            self._stepping_down = asyncio.create_task(self._release())
        await asyncio.shield(self._stepping_down)

    async def _release(self) -> None:
        if self._leading is not None:
            self._leading.cancel()
            await asyncio.gather(self._leading, return_exceptions=True)
        self._fence.shut()
        if self._election is not None:
            await self._election.release()

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                cluster = self._cluster
                supervisor = Supervisor(self._api, cluster.cache, cluster.scopes, self._source)
                watching = group.create_task(supervisor.run())
                sweeping = group.create_task(self._sweeper.run())
                self._leading = group.create_task(self._lead())
                others = [sweeping, group.create_task(self._follow_key())]
                if self._external_metrics is not None:
                    others.append(group.create_task(self._serve_metrics(self._external_metrics)))
                await watching  # it ends when this process is stopped
                for each in others:
                    each.cancel()
        except* LeaseLost as lost:
            self.failed = True
            _log.error("no longer the leader: %s; this process ends", _cause(lost))
        except* Exception as errors:
            self.failed = True
            _log.error("the operator failed", exc_info=_cause(errors))
        finally:
            self._fence.shut()
            self._on_end()

    async def _lead(self) -> None:
        if self._election is None:
            self._fence.open()
            metrics.LEADER.set(1)
            namespace, _, name = self._settings.installation.partition("/")
            heartbeat = Heartbeat(self._api, namespace, name, self._settings.identity)
            await heartbeat.start()
            async with asyncio.TaskGroup() as group:
                group.create_task(heartbeat.run())
                group.create_task(self._work())
            return
        await self._election.acquire()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._election.hold())
            group.create_task(self._work())

    async def _work(self) -> None:
        self._key = await self._find_key()
        workers = self._settings.workers
        self._controller = Controller(self._cluster, self._fleet, self._decide, workers, self._is_foreign)
        await self._controller.run()

    async def _serve_metrics(self, external: ExternalMetrics) -> None:
        """Serve the external metrics API. A standby does, too: it needs the key that the leader has made."""
        async with asyncio.TaskGroup() as group:
            group.create_task(external.run())
            if not self._key:
                self._key = await self._find_key()

    def _services(self, namespace: str, names: frozenset[str] | None) -> list[tuple[Key, Object]]:
        """The LLMServices of a namespace, all or those of these names."""
        cache = self._cluster.cache
        refs = cache.refs(KIND, namespace) if names is None else [Ref(KIND, namespace, name) for name in names]
        found = ((Key(namespace, ref.name), cache.get(ref)) for ref in refs)
        return [(key, cached.unpack()) for key, cached in found if cached is not None]

    def _is_foreign(self, observed: Observed) -> bool:
        """Whether a service is another installation's, whose pods have other tokens."""
        return belongs_elsewhere(observed, self._settings.installation)

    def _decide(self, observed: Observed, now: datetime) -> Plan:
        settings = self._settings
        defaults = dataclasses.replace(
            settings.defaults,
            internal_key=self._key,
            operator_namespace=settings.namespace,
            installation=settings.installation,
        )
        return reconcile(observed, now, defaults)

    async def _follow_key(self) -> None:
        """Take over another root key. Engines refuse the tokens that follow from it, by which each service rotates."""
        while True:
            await asyncio.sleep(KEY_SECONDS)
            if not self._key:
                continue
            try:
                key = await root_key(self._api, self._settings.namespace)
            except (ApiError, NotLeader, ValueError) as error:
                _log.warning("the key of the internal tokens: %s; it stays", error)
                continue
            if key != self._key:
                _log.info("the key of the internal tokens has changed")
                self._key = key

    async def _find_key(self) -> bytes:
        while True:
            try:
                return await root_key(self._api, self._settings.namespace)
            except NotLeader:  # the leader makes it
                await asyncio.sleep(_PAUSE)
            except (ApiError, ValueError) as error:
                _log.error("the key of the internal tokens: %s; again in %.0f s", error, _PAUSE)
                await asyncio.sleep(_PAUSE)

    def _token(self, pod: Object) -> str | None:
        """What opens the internal port of ``pod``."""
        metadata = pod["metadata"]
        name = metadata["labels"][NAME]
        service = self._cluster.cache.get(Ref(KIND, metadata["namespace"], name))
        if service is None or not self._key:
            return None
        return internal_token(self._key, metadata["namespace"], name, service.uid)

    def _unhealthy(self) -> str:
        """What is wrong with this process. Its loop turns, or it could not say."""
        if self._task is None or self._task.done():
            return "the operator has ended"
        if self._controller is not None and self._controller.longest_reconcile > STUCK:
            return f"a reconcile has taken {self._controller.longest_reconcile:.0f} s"
        return ""

    def _unready(self) -> str:
        """What has yet to be listed; it is in the informer cache on a standby, too."""
        scopes = self._cluster.scopes
        if scopes.unsynced:
            return f"waiting for the first lists: {', '.join(scopes.unsynced)}"
        if not scopes.served_namespaces and scopes.namespaces:
            return f"no namespace can be watched: {', '.join(scopes.skipped)}"
        return ""

    def _liveness(self, loop: asyncio.AbstractEventLoop) -> str:
        """What kopf's liveness endpoint says: its own loop turns, and its probe handler got `_unhealthy` from ours.

        While kopf does not listen, as between two of its runs, our loop alone is checked.
        """
        url = self._source.liveness_url
        if url is None:
            return _in_loop(loop, self._unhealthy)
        try:
            _DIRECT.open(url, timeout=PROBE_SECONDS + 1).close()
        except OSError as error:
            between = isinstance(getattr(error, "reason", None), ConnectionRefusedError)
            return _in_loop(loop, self._unhealthy) or ("" if between else f"kopf: {error}")
        return ""


def _in_loop(loop: asyncio.AbstractEventLoop, probe: health.Probe) -> str:
    """``probe`` called in ``loop`` from another thread."""

    async def call() -> str:
        return probe()

    if loop.is_closed():
        return "the operator has ended"
    future = asyncio.run_coroutine_threadsafe(call(), loop)
    try:
        return future.result(PROBE_SECONDS)
    except TimeoutError:
        future.cancel()
        return f"the control loop has not responded for {PROBE_SECONDS:g} s"


def _cause(error: BaseException) -> BaseException:
    """The first error in a group of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
