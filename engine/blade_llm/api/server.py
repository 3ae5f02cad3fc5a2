"""Run the two ports of one server, from the engine process that loads its model to the last answer.

SIGTERM or SIGINT drains: new requests get 503, running ones finish, then the process ends with 0. A second signal ends
it at once. When the engine process dies, open requests get their errors and the process ends with 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from blade_llm.api.app import make_app
from blade_llm.api.context import ServerContext
from blade_llm.api.internal import make_internal_app
from blade_llm.api.internal_token import InternalToken
from blade_llm.api.served_model import ServedModel
from blade_llm.api.waiting import first_of
from blade_llm.engine.client import EngineClient, EngineDeadError
from blade_llm.engine.launch import EngineHandle
from blade_llm.engine.messages import EngineFailure, EngineReady

_BACKLOG: Final = 2048
_CLOSE_SECONDS: Final = 5
"""For open responses to leave after the last token or error."""
_log = logging.getLogger(__name__)


class PortTakenError(RuntimeError):
    """Another program listened first."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Sockets that are bound and not yet listening."""

    public: socket.socket
    internal: socket.socket
    internal_token: InternalToken | None
    """What the internal port asks for; None: nothing."""

    def listen(self) -> None:
        """Take connections. Raises :class:`PortTakenError`: a port that is bound can still be lost to another."""
        for sock in (self.public, self.internal):
            try:
                sock.listen(_BACKLOG)
            except OSError as error:
                raise PortTakenError(f"cannot listen on port {sock.getsockname()[1]}: {error.strerror}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    drain_timeout: float = 30.0
    """Seconds running requests get after a signal."""
    live_timeout: float = 60.0
    """Seconds without progress, with work present, after which ``/live`` fails."""
    log_level: str = "INFO"


class _Server(uvicorn.Server):
    """Signals are ours, and we want to know when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _EngineWatch:
    """Tells the event loop when and why the engine process ended."""

    def __init__(self, engine: EngineHandle, client: EngineClient) -> None:
        self.failure: EngineFailure | None = None
        self.ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._client = client
        threading.Thread(target=self._wait, args=(engine,), name="engine-watch", daemon=True).start()

    def _wait(self, engine: EngineHandle) -> None:
        failure = engine.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: we are leaving anyway
            self._loop.call_soon_threadsafe(self._tell, failure)

    def _tell(self, failure: EngineFailure) -> None:
        self.failure = failure
        self._client.fail(EngineDeadError(failure.message))
        self.ended.set()


async def run_server(
    engine: EngineHandle,
    listen: Ports,
    model: ServedModel,
    options: ServerOptions,
    on_ready: Callable[[EngineReady], None],
) -> EngineFailure | None:
    """Wait for the engine, serve until a signal or the engine's end. Returns why the engine failed, if it did.

    ``on_ready`` is called when requests are answered. The caller closes ``engine``. Raises :class:`PortTakenError`.
    """
    client = EngineClient(engine.address)
    watch = _EngineWatch(engine, client)
    stop = asyncio.Event()
    _on_signals(stop, engine)
    try:
        await first_of(_loaded(client), watch.ended.wait(), stop.wait())
        if watch.failure is None and not stop.is_set():
            ready = await client.ready()
            engine.remove_folder()
            listen.listen()
            context = ServerContext(client, model, ready.max_model_len, options.live_timeout)
            await _serve(context, listen, options, watch, stop, lambda: on_ready(ready))
        return watch.failure
    finally:
        client.close()


async def _loaded(client: EngineClient) -> None:
    with contextlib.suppress(EngineDeadError):
        await client.ready()


async def _serve(
    context: ServerContext,
    listen: Ports,
    options: ServerOptions,
    watch: _EngineWatch,
    stop: asyncio.Event,
    on_ready: Callable[[], None],
) -> None:
    servers = [
        (_server(make_app(context), options.log_level), listen.public),
        (_server(make_internal_app(context, listen.internal_token), options.log_level), listen.internal),
    ]
    tasks = [asyncio.ensure_future(server.serve(sockets=[sock])) for server, sock in servers]
    for (server, _), task in zip(servers, tasks, strict=True):
        await first_of(server.listening.wait(), asyncio.wait([task]))
    if not any(task.done() for task in tasks):
        on_ready()
        await first_of(stop.wait(), watch.ended.wait())
    if stop.is_set() and watch.failure is None:
        await _drain(context, watch, options.drain_timeout)
    context.stopping.set()
    context.client.stop_open()
    for server, _ in servers:
        server.should_exit = True
    await asyncio.gather(*tasks)


async def _drain(context: ServerContext, watch: _EngineWatch, timeout: float) -> None:
    context.ending = True
    context.set_draining(True)
    _log.info("draining: %d requests open, at most %g s", context.client.num_open, timeout)
    await first_of(context.client.idle(), watch.ended.wait(), timeout=timeout)
    if context.client.num_open:
        _log.warning("drain timed out; %d requests are cut off", context.client.num_open)


def _on_signals(stop: asyncio.Event, engine: EngineHandle) -> None:
    def handle() -> None:
        if stop.is_set():
            engine.kill()
            os._exit(1)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handle)


def _server(app: ASGIApp, log_level: str) -> _Server:
    return _Server(
        uvicorn.Config(
            app,
            loop="none",
            http="httptools",
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level="debug" if log_level == "DEBUG" else "warning",
            timeout_keep_alive=75,
            timeout_graceful_shutdown=_CLOSE_SECONDS,
            server_header=False,
        )
    )
