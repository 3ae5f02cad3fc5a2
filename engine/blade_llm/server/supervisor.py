"""Run one server, from the engine process that loads its model to the last response.

This process is the first API server: it serves the public port, alone or with others
(:mod:`blade_llm.server.process_manager`), has the internal port to itself, and supervises the engine and the other API
servers. SIGTERM or SIGINT drains: new requests get 503, running ones finish, then all processes exit, with 0. A SIGINT
after that kills them at once. When one of the processes exits by itself, open requests get an error and the server
exits with 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from blade_llm.api.common.comments import StreamComments
from blade_llm.api.common.context import ServerContext
from blade_llm.api.common.response_store import ResponseStore, ResponseStoreOptions
from blade_llm.api.common.served_model import ModelSource, ServedModel
from blade_llm.api.common.shared_stats import SharedStats
from blade_llm.api.images.reader import open_reader
from blade_llm.api.images.serving import ImageServing, NoImages
from blade_llm.api.metrics.names import Aliases
from blade_llm.api.metrics.requests import NUM_COUNTERS
from blade_llm.api.telemetry.payload_log import PayloadLog, PayloadOptions
from blade_llm.api.telemetry.tracing import open_tracer
from blade_llm.engine.client import EngineClient, EngineDeadError
from blade_llm.engine.heartbeat import open_heartbeat
from blade_llm.engine.launch import EngineHandle
from blade_llm.engine.messages import EngineFailure, EngineReady
from blade_llm.engine.start import freeze_gc_heap
from blade_llm.server.app import make_app
from blade_llm.server.http.access import AccessRules
from blade_llm.server.http.limits import HttpLimits
from blade_llm.server.http.server import HttpServer
from blade_llm.server.http.sockets import listen_all
from blade_llm.server.internal import make_internal_app
from blade_llm.server.process_manager import ApiServerProcess, Serve, Stop, start_api_servers
from blade_llm.server.signals import drain_on_signals
from blade_llm.server.waiting import first_of

_BACKLOG: Final = 2048
_POLL_SECONDS: Final = 0.02
"""Interval between two checks of the open requests of all processes, while they drain."""
_log = logging.getLogger(__name__)


class PortTakenError(RuntimeError):
    """Another program listened first."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Sockets that are bound and not yet listening."""

    public: list[socket.socket]
    """One for each API-server process, on the same port."""
    internal: socket.socket
    public_rules: AccessRules
    internal_rules: AccessRules
    limits: HttpLimits
    """Of each port, in each process."""

    def listen(self) -> None:
        """Accept connections, and leave the other processes' sockets to them, which inherited them.

        Raises :class:`PortTakenError`: a port that is bound can still be lost to another.
        """
        for sockets in (self.public, [self.internal]):
            try:
                listen_all(sockets, _BACKLOG)
            except OSError as error:
                port = sockets[0].getsockname()[1]
                raise PortTakenError(f"cannot listen on port {port}: {error.strerror}") from None
        for sock in self.public[1:]:  # after such a process exits, connections would wait in a queue nobody reads
            sock.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Time-outs and log level of one server."""

    drain_timeout: float = 30.0
    """Seconds that running requests may take after a signal."""
    live_timeout: float = 60.0
    """Seconds without progress, with work present, after which ``/live`` fails."""
    log_level: str = "INFO"
    strict_fields: bool = False
    """Refuse requests with a field that nobody knows."""
    metric_aliases: Aliases = "none"
    """Whose metric names are exposed, too."""
    responses: ResponseStoreOptions = field(default_factory=ResponseStoreOptions)
    payloads: PayloadOptions | None = None
    """The payload log; None: nothing of prompts and outputs is kept."""
    images: ImageServing | NoImages = field(default_factory=NoImages)
    """How requests may bring images."""


@dataclass(frozen=True, slots=True)
class ServerFailure:
    """Why the server exited by itself."""

    message: str
    traceback: str = ""
    """The engine process's, where it has one that helps."""


class _FailureMonitor:
    """Notices in the event loop when and why a process of the server exited, and fails this one's open requests."""

    def __init__(self, engine: EngineHandle, client: EngineClient, api_servers: list[ApiServerProcess]) -> None:
        self.failure: ServerFailure | None = None
        self.client_message = ""
        """The failure as clients read it."""
        self.failed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._client = client
        threading.Thread(target=self._wait, args=(engine,), name="engine-monitor", daemon=True).start()
        for api_server in api_servers:
            api_server.watch(self._api_server_exited)

    def _wait(self, engine: EngineHandle) -> None:
        failure = engine.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server exits anyway
            self._loop.call_soon_threadsafe(self._engine_exited, failure)

    def _engine_exited(self, failure: EngineFailure) -> None:
        known = ServerFailure(failure.message)
        if not failure.user_error:
            known = ServerFailure(f"the engine failed: {failure.message}", failure.traceback)
        self._fail(known, f"the engine is gone: {failure.message}")

    def _api_server_exited(self, how: str) -> None:
        self._fail(ServerFailure(how), f"{how}, and the server ends with it")

    def _fail(self, failure: ServerFailure, client_message: str) -> None:
        if self.failure is None:
            self.failure, self.client_message = failure, client_message
            self._client.fail(EngineDeadError(client_message))
            self.failed.set()


async def run_server(
    engine: EngineHandle,
    listen: Ports,
    model: ServedModel,
    source: ModelSource,
    options: ServerOptions,
    on_ready: Callable[[EngineReady], None],
) -> ServerFailure | None:
    """Wait for the engine, serve until a signal or a process's exit. Returns why the server failed, if it did.

    The other API servers read the ``model`` themselves, from its ``source``. ``on_ready`` is called when requests are
    served. The caller closes ``engine``. Raises :class:`PortTakenError`.
    """
    stats = SharedStats(len(listen.public), NUM_COUNTERS, engine_beat=open_heartbeat(engine.heartbeat))
    client = EngineClient(engine.address, heartbeat=stats.heartbeats[0], follow_kv=True)  # for the internal port
    api_servers = start_api_servers(
        listen.public,
        stats,
        engine,
        source,
        options.live_timeout,
        options.log_level,
        options.strict_fields,
        options.metric_aliases,
        listen.public_rules,
        listen.limits,
        options.responses,
        options.payloads,
        options.images,
    )
    monitor = _FailureMonitor(engine, client, api_servers)
    images = open_reader(options.images, model.tokenizer)  # takes a while, and the engine loads its model meanwhile
    stop = asyncio.Event()

    def kill() -> None:
        engine.kill()
        for api_server in api_servers:
            api_server.kill()

    drain_on_signals(stop, kill)
    try:
        await first_of(_loaded(client, api_servers), monitor.failed.wait(), stop.wait())
        if monitor.failure is None and not stop.is_set():
            ready = await client.ready()
            engine.remove_folder()
            listen.listen()
            context = ServerContext(
                client,
                model,
                ready.max_model_len,
                stats,
                live_timeout=options.live_timeout,
                hidden_size=ready.hidden_size,
                max_body_bytes=listen.limits.max_body_bytes,
                strict_fields=options.strict_fields,
                metric_aliases=options.metric_aliases,
                comments=StreamComments(listen.limits.comment_seconds),
                responses=ResponseStore(options.responses, count=len(listen.public)),
                tracer=open_tracer(),
                payloads=None if options.payloads is None else PayloadLog(options.payloads),
                images=images,
            )
            await _serve(context, listen, api_servers, options, monitor, stop, lambda: on_ready(ready))
        return monitor.failure
    finally:
        for api_server in api_servers:
            api_server.send(Stop(monitor.client_message or None))
        for api_server in api_servers:
            await api_server.close()
        client.close()


async def _loaded(client: EngineClient, api_servers: list[ApiServerProcess]) -> None:
    with contextlib.suppress(EngineDeadError):
        await client.ready()
        for api_server in api_servers:
            await api_server.ready.wait()


async def _serve(
    context: ServerContext,
    listen: Ports,
    api_servers: list[ApiServerProcess],
    options: ServerOptions,
    monitor: _FailureMonitor,
    stop: asyncio.Event,
    on_ready: Callable[[], None],
) -> None:
    for api_server in api_servers:
        api_server.send(Serve())
    servers = [
        HttpServer(make_app(context, listen.public_rules), listen.limits, options.log_level),
        HttpServer(make_internal_app(context, listen.internal_rules), listen.limits, options.log_level),
    ]
    sockets = (listen.public[0], listen.internal)
    tasks = [await server.begin(sock) for server, sock in zip(servers, sockets, strict=True)]
    if not any(task.done() for task in tasks):
        freeze_gc_heap()
        on_ready()
        await first_of(stop.wait(), monitor.failed.wait())
    if stop.is_set() and monitor.failure is None:
        await _drain(context, monitor, options.drain_timeout)
    context.stopping.set()
    context.client.stop_open()
    for api_server in api_servers:
        api_server.send(Stop(monitor.client_message or None))
    for server in servers:
        server.should_exit = True
    await asyncio.gather(*tasks)
    await context.close()


async def _drain(context: ServerContext, monitor: _FailureMonitor, timeout: float) -> None:
    stats = context.shared_stats
    stats.shut_down()
    context.set_draining(True)
    _log.info("draining: %d requests open, at most %g s", stats.num_open, timeout)

    async def idle() -> None:
        await asyncio.sleep(_POLL_SECONDS)  # another process may just be accepting a request that it did not refuse
        while stats.num_open:  # noqa: ASYNC110 - other processes' numbers
            await asyncio.sleep(_POLL_SECONDS)

    await first_of(idle(), monitor.failed.wait(), timeout=timeout)
    if stats.num_open:
        _log.warning("drain timed out; %d requests are cut off", stats.num_open)
