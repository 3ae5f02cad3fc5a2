"""One port's HTTP server: uvicorn without its signals, logs and start-up protocol."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from blade_llm.server.http.connection import bounded_connections
from blade_llm.server.http.limits import HttpLimits
from blade_llm.server.waiting import first_of

CLOSE_SECONDS: Final = 5
"""For open responses to leave after the last token or error."""


class HttpServer(uvicorn.Server):
    """Signals are ours, connections are bounded, and we want to know when it listens."""

    def __init__(self, app: ASGIApp, limits: HttpLimits, log_level: str) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="none",
                http=bounded_connections(limits),  # type: ignore[arg-type]  # it is called and no more
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                log_level="debug" if log_level == "DEBUG" else "warning",
                timeout_keep_alive=limits.idle_seconds,  # type: ignore[arg-type]
                timeout_graceful_shutdown=CLOSE_SECONDS,
                server_header=False,
            )
        )
        self._listening = asyncio.Event()

    async def begin(self, sock: socket.socket) -> asyncio.Task[None]:
        """Serve on ``sock``, which listens; the task ends after ``should_exit`` was set, or if it cannot serve."""
        task = asyncio.ensure_future(self.serve(sockets=[sock]))
        await first_of(self._listening.wait(), asyncio.wait([task]))
        return task

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
