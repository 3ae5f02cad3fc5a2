"""kopf as the event source: it lists and watches, and its one ``on.event`` handler feeds the informer cache.

A run of ``kopf.operator()`` has a thread and an event loop of its own: when kopf ends, for whatever reason, it cancels
every task that its loop got meanwhile, and neither the controller nor the lease may be among them. `Supervisor` starts
the next run. Events reach the cache in the caller's loop.

kopf writes nothing: there is no handler with a state, no timer, no daemon, no index, so it needs no annotation and no
finalizer, and the storages it would use for them are empty ones.

Its requests go through the session of `kopf_session.py`; `kopf_settings.py` says how it is configured.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import kopf
from kubernetes.aio import client

from blade_operator.cluster.kubernetes.informer_cache import InformerCache
from blade_operator.cluster.kubernetes.watching import kopf_settings
from blade_operator.cluster.kubernetes.watching.kopf_session import KopfSession
from blade_operator.cluster.kubernetes.watching.scopes import Scope
from blade_operator.model.objects import Object, Ref

_log = logging.getLogger(__name__)

PROBE_SECONDS = 4.0
"""Seconds within which the caller's loop has to respond to a liveness probe."""
STOP_SECONDS = 5.0
"""Seconds a run may take to end."""


class EventSource:
    """Runs kopf. All callbacks are called in the loop of `run`."""

    def __init__(
        self,
        configuration: client.Configuration,
        cache: InformerCache,
        listed: Callable[[Scope], None],
        probe: Callable[[], str] = lambda: "",
        on_cleanup: Callable[[], Awaitable[None]] | None = None,
        backoffs: Sequence[float] | None = None,
    ) -> None:
        """``listed`` is called with each scope that kopf has listed whole, every time. ``probe`` says what is wrong
        with the process, empty when nothing is. ``on_cleanup`` ends what must not outlive kopf when the process ends.
        """
        self._configuration = configuration
        self._cache = cache
        self._listed = listed
        self._probe = probe
        self._on_cleanup = on_cleanup
        self._backoffs = kopf_settings.BACKOFFS if backoffs is None else tuple(backoffs)
        self._caller: asyncio.AbstractEventLoop
        self._ended: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._stopped = False
        self._closing = False
        self.liveness_url: str | None = None
        """kopf's liveness endpoint; None while kopf does not run."""
        self.unlisted: set[Scope] = set()
        """What kopf has yet to list in this run."""
        self.unwatchable: set[Scope] = set()
        """What could be listed, but not watched; `Supervisor` takes out what can be."""
        self.stop_reason = ""
        """The reason for which `stop` ended the run, where that is a failure."""

    async def run(self, scopes: Sequence[Scope], namespaces: Sequence[str]) -> None:
        """Watch ``scopes``, which are all in ``namespaces`` (empty: the whole cluster), until kopf ends.

        Returns when it was stopped, and raises what ended it otherwise.
        """
        self._caller = asyncio.get_running_loop()
        self._stopped = self._closing
        self.unlisted, self.stop_reason = set(scopes), ""
        ended: asyncio.Future[None] = self._caller.create_future()
        self._ended = ended

        def work() -> None:
            error: BaseException | None = None
            try:
                asyncio.run(self._operate(scopes, namespaces))
            except BaseException as failure:
                error = failure
            with contextlib.suppress(RuntimeError):  # the caller's loop is closed
                self._caller.call_soon_threadsafe(_end, ended, error)

        threading.Thread(target=work, name="kopf", daemon=True).start()
        try:
            await asyncio.shield(ended)
        finally:
            if not ended.done():
                self.stop()
                await asyncio.wait([ended], timeout=STOP_SECONDS)

    def stop(self, reason: str = "") -> None:
        """End the run, if there is one; with a ``reason`` it has failed."""
        self._stopped = True
        self.stop_reason = reason
        if self._ended is not None:
            self._expect_end(self._ended, 3 * STOP_SECONDS)
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop.set)

    def close(self) -> None:
        """End the run and everything with it: kopf's clean-up calls ``on_cleanup``."""
        self._closing = True
        self.stop()

    @property
    def is_closing(self) -> bool:
        """Whether no further run is wanted."""
        return self._closing

    async def _operate(self, scopes: Sequence[Scope], namespaces: Sequence[str]) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), (stop := asyncio.Event())
        self._loop.set_exception_handler(_on_loop_error)
        if self._stopped:
            stop.set()
        # Opened here and not in the login handler: kopf would wait for ever for one that fails.
        session = KopfSession(self._configuration, scopes, self._report_listed, self._report_forbidden)
        endpoint = f"http://127.0.0.1:{_free_port()}/healthz"
        registry = kopf.OperatorRegistry()
        self._register(registry, scopes, session, endpoint)
        try:
            await kopf.operator(
                registry=registry,
                standalone=True,
                clusterwide=not namespaces,
                namespaces=namespaces,
                liveness_endpoint=endpoint,
                stop_flag=stop,
                memo=kopf_settings.NoMemo(),
            )
        finally:
            await session.close()
            if self._stop is stop:  # not of the next run, if this one had been given up
                self.liveness_url = None
                self._loop = self._stop = None

    def _register(
        self, registry: kopf.OperatorRegistry, scopes: Sequence[Scope], session: KopfSession, endpoint: str
    ) -> None:
        kinds = list(dict.fromkeys(scope.kind for scope in scopes))
        permanent = kopf.ErrorsMode.PERMANENT

        @kopf.on.startup(registry=registry, errors=permanent)
        async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
            kopf_settings.configure(settings, kinds, self._backoffs)
            self.liveness_url = endpoint

        @kopf.on.login(registry=registry, errors=permanent)
        async def login(**_: Any) -> kopf.AiohttpSession | None:
            return session.login()

        @kopf.on.probe(registry=registry, errors=permanent)
        async def control_loop(**_: Any) -> str:
            try:
                wrong = await asyncio.wait_for(self._in_caller(self._check()), PROBE_SECONDS)
            except TimeoutError:
                wrong = f"the control loop has not responded for {PROBE_SECONDS:g} s"
            if wrong:
                raise kopf.PermanentError(wrong)
            return "ok"

        own, ended = asyncio.all_tasks(), self._ended

        @kopf.on.cleanup(registry=registry, errors=permanent)
        async def clean_up(**_: Any) -> None:
            self.liveness_url = None
            self._caller.call_soon_threadsafe(self._expect_end, ended, 2 * STOP_SECONDS)
            await _cancel(asyncio.all_tasks() - own)
            if self._closing and self._on_cleanup is not None:
                await self._in_caller(_await(self._on_cleanup()))

        for kind in kinds:
            place = (kind.group, kind.version, kind.plural)
            kopf.on.event(*place, registry=registry, id=kind.plural, param=kind)(self._receive)

    async def _receive(self, *, type: str, event: kopf.RawEvent, param: Any = None, **_: Any) -> None:
        """The handler. It returns nothing: kopf would write a result into the object's status."""
        obj: Object = {**event["object"], "kind": param.name, "apiVersion": param.api_version}
        self._caller.call_soon_threadsafe(self._deliver, type, obj)

    def _deliver(self, event_type: str, obj: Object) -> None:
        if event_type == "DELETED":
            self._cache.remove(Ref.of(obj), int(obj["metadata"]["resourceVersion"]))
        else:
            self._cache.put(obj)

    def _report_listed(self, scope: Scope) -> None:
        self._caller.call_soon_threadsafe(self._note_listed, scope)

    def _report_forbidden(self, scope: Scope) -> None:
        self._caller.call_soon_threadsafe(self._note_forbidden, scope)

    def _note_forbidden(self, scope: Scope) -> None:
        """End the run at once: after its retries kopf would end it, too, and would have missed events of all others."""
        self.unwatchable.add(scope)
        self.stop(f"{scope} may not be watched")

    def _note_listed(self, scope: Scope) -> None:
        self.unlisted.discard(scope)
        self._listed(scope)

    def _expect_end(self, ended: asyncio.Future[None] | None, seconds: float) -> None:
        """Give kopf up, and its thread, when it was stopped or has cleaned up, and does not end."""
        if ended is not None and not ended.done():
            self._caller.call_later(seconds, _end, ended, RuntimeError("kopf did not end"))

    async def _check(self) -> str:
        return self._probe()

    def _in_caller(self, step: Any) -> asyncio.Future[Any]:
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(step, self._caller))


def _end(ended: asyncio.Future[None], error: BaseException | None) -> None:
    if ended.done():
        return
    if error is None:
        ended.set_result(None)
    else:
        ended.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
        ended.exception()  # retrieved: nobody may be waiting any more


def _on_loop_error(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What is left of a run as it ends, such as watches that fail after the first one did: that one is reported."""
    _log.debug("kopf: %s", context.get("message"), exc_info=context.get("exception"))


async def _cancel(tasks: set[asyncio.Task[Any]]) -> None:
    """End the watches that kopf 1.45.2 leaves behind when one of them fails.

    It closes their session before it cancels them; then they wait for a new one, and neither they nor kopf ever end.
    """
    tasks = tasks - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=STOP_SECONDS)


async def _await(step: Awaitable[None]) -> None:
    await step


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
