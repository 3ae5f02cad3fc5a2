"""Serving, and stopping so that clients hardly notice."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from blade_router.client import Client
from blade_router.errors import Refused
from blade_router.http.connection import HttpConnection
from blade_router.http.cors import Cors
from blade_router.http.head import RawRequest
from blade_router.http.listening import BACKLOG
from blade_router.http.reading import HttpLimits

logger = logging.getLogger("blade_router.http")

Handler = Callable[[RawRequest, Client], Awaitable[None]]

ACCEPT_ROUNDS = 3
"""Turns of the event loop before the sockets close: each accepts what has queued up, which would else be reset."""
SWEEP = 1.0
"""Most seconds between two looks at the deadlines of the connections: a timer for each request would cost more."""


class Server:
    """Serves ``handler`` on sockets; made inside the event loop.

    Args:
        handler: answers one request; exceptions other than ``ClientGone`` become a 500.
        farewell: seconds at the end in which an open connection may bring another request.
        drain_timeout: seconds requests under way have to finish after that.
        refused: hears of each request that reached no handler.
    """

    def __init__(
        self,
        handler: Handler,
        limits: HttpLimits,
        *,
        farewell: float = 1.0,
        drain_timeout: float = 30.0,
        tls: ssl.SSLContext | None = None,
        refused: Callable[[Refused], None] = lambda refusal: None,
    ) -> None:
        self.handler = handler
        self.limits = limits
        self.refused = refused
        self.cors: Cors | None = None
        self.loop = asyncio.get_running_loop()
        self.connections: set[HttpConnection] = set()
        self.closing = False
        """Connections close as soon as nothing is under way on them."""
        self._leaving = False
        self._farewell = farewell
        self._drain_timeout = drain_timeout
        self._tls = tls
        self._listeners: Sequence[socket.socket] = ()
        self._servers: list[asyncio.Server] = []
        self._empty = asyncio.Event()
        self._empty.set()
        self._forced = asyncio.Event()
        self._interval = min(SWEEP, limits.header_timeout / 4, limits.body_timeout / 4, limits.keep_alive / 4)
        self._sweeper: asyncio.TimerHandle | None = None

    async def start(self, listeners: Sequence[socket.socket]) -> None:
        """Accept from these sockets."""
        self._listeners = listeners
        for listener in listeners:
            server = await self.loop.create_server(
                lambda: HttpConnection(self), sock=listener, backlog=BACKLOG, **self._tls_options()
            )
            self._servers.append(server)
        self._sweep()

    async def stop(self) -> None:
        """Stop listening, let clients go for ``farewell`` seconds, then close what is idle and wait for the rest.

        A connection closed just when its client sends the next request costs that client an error. So for a while
        requests on open connections are answered as ever, with ``connection: close``.
        """
        self._leaving = True
        for connection in self.connections:
            connection.leave()
        for _ in range(ACCEPT_ROUNDS):
            await asyncio.sleep(0)
        self._stop_listening()
        await self._emptied(self._farewell)
        self.closing = True
        for connection in list(self.connections):
            if not connection.busy and not connection.receiving:
                connection.close()
        await self._emptied(self._drain_timeout)
        await self.close()

    async def close(self) -> None:
        """Break what is still open."""
        self._stop_listening()
        if self._sweeper is not None:
            self._sweeper.cancel()
        left = list(self.connections)
        if left:
            logger.warning("%d connections were still in use", len(left))
        for connection in left:
            connection.abort()
        await asyncio.sleep(0)  # they hear of it
        await asyncio.gather(*(connection.ended() for connection in left))

    def hurry(self) -> None:
        """Let ``stop`` wait no longer."""
        self._forced.set()

    # what connections call

    def opened(self, connection: HttpConnection) -> None:
        self.connections.add(connection)
        self._empty.clear()
        if self._leaving:
            connection.leave()

    def closed(self, connection: HttpConnection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._empty.set()

    # inside

    def _tls_options(self) -> dict[str, Any]:
        if self._tls is None:
            return {}
        limit = self.limits.header_timeout
        return {"ssl": self._tls, "ssl_handshake_timeout": limit, "ssl_shutdown_timeout": limit}

    def _stop_listening(self) -> None:
        for server in self._servers:
            server.close()
        for listener in self._listeners:
            listener.close()

    async def _emptied(self, seconds: float) -> None:
        """Until no connection is left, at most that long."""
        waits = [asyncio.ensure_future(event.wait()) for event in (self._empty, self._forced)]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _sweep(self) -> None:
        now = self.loop.time()
        for connection in list(self.connections):
            connection.expire(now)
        self._sweeper = self.loop.call_later(self._interval, self._sweep)
