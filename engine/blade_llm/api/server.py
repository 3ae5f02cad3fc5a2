"""Run one server, from the engine process that loads its model to the last answer.

This process is the first front: it serves the public port, alone or with others (:mod:`blade_llm.api.fronts`), has the
internal port to itself, and looks after the engine and the other fronts. SIGTERM or SIGINT drains: new requests get
503, running ones finish, then all processes end, with 0. A second signal ends them at once. When the engine or a front
dies, open requests get their errors and the server ends with 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from blade_llm.api.app import make_app
from blade_llm.api.board import Board
from blade_llm.api.context import ServerContext
from blade_llm.api.fronts import Front, Serve, Stop, start_fronts
from blade_llm.api.http_server import HttpServer
from blade_llm.api.internal import make_internal_app
from blade_llm.api.internal_token import InternalToken
from blade_llm.api.metrics import NUM_COUNTERS
from blade_llm.api.served_model import ModelSource, ServedModel
from blade_llm.api.sockets import listen_all
from blade_llm.api.waiting import first_of
from blade_llm.engine.client import EngineClient, EngineDeadError
from blade_llm.engine.launch import EngineHandle
from blade_llm.engine.messages import EngineFailure, EngineReady
from blade_llm.engine.start import spare_the_collector

_BACKLOG: Final = 2048
_LOOK_SECONDS: Final = 0.02
"""Between two looks at what all fronts have open, while they drain."""
_log = logging.getLogger(__name__)


class PortTakenError(RuntimeError):
    """Another program listened first."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Sockets that are bound and not yet listening."""

    public: list[socket.socket]
    """One for each front process, on the same port."""
    internal: socket.socket
    internal_token: InternalToken | None
    """What the internal port asks for; None: nothing."""

    def listen(self) -> None:
        """Take connections, and leave the other fronts' sockets to them, which inherited them.

        Raises :class:`PortTakenError`: a port that is bound can still be lost to another.
        """
        for sockets in (self.public, [self.internal]):
            try:
                listen_all(sockets, _BACKLOG)
            except OSError as error:
                port = sockets[0].getsockname()[1]
                raise PortTakenError(f"cannot listen on port {port}: {error.strerror}") from None
        for sock in self.public[1:]:  # a front that ends would leave connections in a queue that nobody reads
            sock.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    drain_timeout: float = 30.0
    """Seconds running requests get after a signal."""
    live_timeout: float = 60.0
    """Seconds without progress, with work present, after which ``/live`` fails."""
    log_level: str = "INFO"


@dataclass(frozen=True, slots=True)
class ServerFailure:
    """Why the server ended by itself."""

    message: str
    traceback: str = ""
    """The engine process's, where it has one that helps."""


class _Watch:
    """Learns in the event loop when and why a process of the server ended, and tells our own open requests."""

    def __init__(self, engine: EngineHandle, client: EngineClient, fronts: list[Front]) -> None:
        self.failure: ServerFailure | None = None
        self.told = ""
        """The failure as clients read it."""
        self.ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._client = client
        threading.Thread(target=self._wait, args=(engine,), name="engine-watch", daemon=True).start()
        for front in fronts:
            front.watch(self._front_ended)

    def _wait(self, engine: EngineHandle) -> None:
        failure = engine.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: we are leaving anyway
            self._loop.call_soon_threadsafe(self._engine_ended, failure)

    def _engine_ended(self, failure: EngineFailure) -> None:
        known = ServerFailure(failure.message)
        if not failure.user_error:
            known = ServerFailure(f"the engine failed: {failure.message}", failure.traceback)
        self._fail(known, f"the engine is gone: {failure.message}")

    def _front_ended(self, how: str) -> None:
        self._fail(ServerFailure(how), f"{how}, and the server ends with it")

    def _fail(self, failure: ServerFailure, told: str) -> None:
        if self.failure is None:
            self.failure, self.told = failure, told
            self._client.fail(EngineDeadError(told))
            self.ended.set()


async def run_server(
    engine: EngineHandle,
    listen: Ports,
    model: ServedModel,
    source: ModelSource,
    options: ServerOptions,
    on_ready: Callable[[EngineReady], None],
) -> ServerFailure | None:
    """Wait for the engine, serve until a signal or a process's end. Returns why the server failed, if it did.

    The other fronts read the ``model`` themselves, from its ``source``. ``on_ready`` is called when requests are
    answered. The caller closes ``engine``. Raises :class:`PortTakenError`.
    """
    board = Board(len(listen.public), NUM_COUNTERS)
    client = EngineClient(engine.address, vitals=board.vitals[0], follow_kv=True)  # for the internal port
    fronts = start_fronts(listen.public, board, engine.address, source, options.live_timeout, options.log_level)
    watch = _Watch(engine, client, fronts)
    stop = asyncio.Event()
    _on_signals(stop, engine, fronts)
    try:
        await first_of(_loaded(client, fronts), watch.ended.wait(), stop.wait())
        if watch.failure is None and not stop.is_set():
            ready = await client.ready()
            engine.remove_folder()
            listen.listen()
            context = ServerContext(
                client,
                model,
                ready.max_model_len,
                board,
                live_timeout=options.live_timeout,
                hidden_size=ready.hidden_size,
            )
            await _serve(context, listen, fronts, options, watch, stop, lambda: on_ready(ready))
        return watch.failure
    finally:
        for front in fronts:
            front.tell(Stop(watch.told or None))
        for front in fronts:
            await front.close()
        client.close()


async def _loaded(client: EngineClient, fronts: list[Front]) -> None:
    with contextlib.suppress(EngineDeadError):
        await client.ready()
        for front in fronts:
            await front.ready.wait()


async def _serve(
    context: ServerContext,
    listen: Ports,
    fronts: list[Front],
    options: ServerOptions,
    watch: _Watch,
    stop: asyncio.Event,
    on_ready: Callable[[], None],
) -> None:
    for front in fronts:
        front.tell(Serve())
    servers = [
        HttpServer(make_app(context), options.log_level),
        HttpServer(make_internal_app(context, listen.internal_token), options.log_level),
    ]
    sockets = (listen.public[0], listen.internal)
    tasks = [await server.begin(sock) for server, sock in zip(servers, sockets, strict=True)]
    if not any(task.done() for task in tasks):
        spare_the_collector()
        on_ready()
        await first_of(stop.wait(), watch.ended.wait())
    if stop.is_set() and watch.failure is None:
        await _drain(context, watch, options.drain_timeout)
    context.stopping.set()
    context.client.stop_open()
    for front in fronts:
        front.tell(Stop(watch.told or None))
    for server in servers:
        server.should_exit = True
    await asyncio.gather(*tasks)
    await context.close()


async def _drain(context: ServerContext, watch: _Watch, timeout: float) -> None:
    board = context.board
    board.end()
    context.set_draining(True)
    _log.info("draining: %d requests open, at most %g s", board.num_open, timeout)

    async def idle() -> None:
        await asyncio.sleep(_LOOK_SECONDS)  # another front may just be taking in a request that it did not refuse
        while board.num_open:  # noqa: ASYNC110 - other processes' numbers
            await asyncio.sleep(_LOOK_SECONDS)

    await first_of(idle(), watch.ended.wait(), timeout=timeout)
    if board.num_open:
        _log.warning("drain timed out; %d requests are cut off", board.num_open)


def _on_signals(stop: asyncio.Event, engine: EngineHandle, fronts: list[Front]) -> None:
    def handle() -> None:
        if stop.is_set():
            engine.kill()
            for front in fronts:
                front.kill()
            os._exit(1)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handle)
