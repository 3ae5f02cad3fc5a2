"""Run the two ports of one server, from the loaded model to the last answer.

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
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from blade_llm.api.app import make_app
from blade_llm.api.context import ServerContext
from blade_llm.api.internal import make_internal_app
from blade_llm.engine.client import EngineClient, EngineDeadError
from blade_llm.engine.launch import EngineHandle
from blade_llm.engine.messages import EngineFailure

_CLOSE_SECONDS: Final = 5
"""For open responses to leave after the last token or error."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Sockets are bound, not yet listening."""

    public: socket.socket
    internal: socket.socket
    internal_token: str | None
    drain_timeout: float
    log_level: str


class _Server(uvicorn.Server):
    """Signals are ours."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class EngineWatch:
    """Tells the event loop when and why the engine process ended."""

    def __init__(self, handle: EngineHandle, client: EngineClient) -> None:
        self.failure: EngineFailure | None = None
        self.ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._client = client
        threading.Thread(target=self._wait, args=(handle,), name="engine-watch", daemon=True).start()

    def _wait(self, handle: EngineHandle) -> None:
        failure = handle.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: we are leaving anyway
            self._loop.call_soon_threadsafe(self._tell, failure)

    def _tell(self, failure: EngineFailure) -> None:
        self.failure = failure
        self._client.fail(EngineDeadError(failure.message))
        self.ended.set()


async def serve(context: ServerContext, options: ServerOptions, watch: EngineWatch) -> int:
    """Serve until a signal or the engine's end; the exit status. The model must be loaded."""
    servers = [
        (_server(make_app(context), options.log_level), options.public),
        (_server(make_internal_app(context, options.internal_token), options.log_level), options.internal),
    ]
    tasks = [asyncio.ensure_future(server.serve(sockets=[sock])) for server, sock in servers]
    stop = asyncio.Event()
    _on_signals(stop)
    await _first(stop.wait(), watch.ended.wait())
    if stop.is_set() and not watch.ended.is_set():
        await _drain(context, watch, options.drain_timeout)
    context.stopping.set()
    if watch.failure is None:
        context.client.close()
    for server, _ in servers:
        server.should_exit = True
    await asyncio.gather(*tasks, return_exceptions=True)
    return 0 if watch.failure is None and stop.is_set() else 1


async def _drain(context: ServerContext, watch: EngineWatch, timeout: float) -> None:
    context.set_draining(True)
    _log.info("draining: %d requests open, at most %g s", context.client.num_open, timeout)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            await _first(context.client.idle(), watch.ended.wait())
    if context.client.num_open:
        _log.warning("drain timed out; %d requests are cut off", context.client.num_open)


async def _first(*awaitables: Coroutine[object, object, object]) -> None:
    """Return when one of them is done; cancel the others."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _on_signals(stop: asyncio.Event) -> None:
    def handle() -> None:
        if stop.is_set():
            os._exit(1)  # the engine process dies with us
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
            log_level=log_level.lower(),
            timeout_keep_alive=75,
            timeout_graceful_shutdown=_CLOSE_SECONDS,
            server_header=False,
        )
    )
