"""The HTTP server: serving, and a graceful shutdown that clients hardly notice."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any

from blade_router.http.connection import Handler, HttpConnection
from blade_router.http.cors import Cors
from blade_router.http.errors import Refused
from blade_router.http.listening import BACKLOG
from blade_router.http.request_reader import HttpLimits

logger = logging.getLogger("blade_router.http")

ACCEPT_ROUNDS = 3
"""Turns of the event loop before the sockets close: each accepts queued connections, which would else be reset."""
DEADLINE_CHECK_SECONDS = 1.0
"""Most seconds between two checks of the connections' deadlines: a timer for each request would cost more."""


class Server:
    """Serves ``handler`` on sockets; made inside the event loop.

    Args:
        handler: serves one request; exceptions other than ``ClientGone`` become a 500.
        lame_duck: seconds at the end in which an open connection may bring another request.
        drain_timeout: seconds that in-flight requests have to finish after that.
        refused: called for each request that reached no handler.
    """

    def __init__(
        self,
        handler: Handler,
        limits: HttpLimits,
        *,
        lame_duck: float = 1.0,
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
        """Connections close as soon as no request is in flight on them."""
        self._draining = False
        self._lame_duck = lame_duck
        self._drain_timeout = drain_timeout
        self._tls = tls
        self._listeners: Sequence[socket.socket] = ()
        self._servers: list[asyncio.Server] = []
        self._empty = asyncio.Event()
        self._empty.set()
        self._stop_now = asyncio.Event()
        self._interval = min(
            DEADLINE_CHECK_SECONDS, limits.header_timeout / 4, limits.body_timeout / 4, limits.keep_alive / 4
        )
        self._deadline_timer: asyncio.TimerHandle | None = None

    async def start(self, listeners: Sequence[socket.socket]) -> None:
        """Accept from these sockets."""
        self._listeners = listeners
        for listener in listeners:
            server = await self.loop.create_server(
                lambda: HttpConnection(self), sock=listener, backlog=BACKLOG, **self._tls_options()
            )
            self._servers.append(server)
        self._check_deadlines()

    async def stop(self) -> None:
        """Drain: stop listening, serve ``lame_duck`` seconds more, close idle connections, then wait for the rest.

        A connection closed just when its client sends the next request costs that client an error. So for a while
        requests on open connections are served as ever, with ``connection: close``.
        """
        self._draining = True
        for connection in self.connections:
            connection.disable_keep_alive()
        for _ in range(ACCEPT_ROUNDS):
            await asyncio.sleep(0)
        self._stop_listening()
        await self._wait_until_empty(self._lame_duck)
        self.closing = True
        for connection in list(self.connections):
            if not connection.busy and not connection.receiving:
                connection.close()
        await self._wait_until_empty(self._drain_timeout)
        await self.close()

    async def close(self) -> None:
        """Abort the connections that are still open."""
        self._stop_listening()
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        left = list(self.connections)
        if left:
            logger.warning("%d connections were still in use", len(left))
        for connection in left:
            connection.abort()
        await asyncio.sleep(0)  # they are notified
        await asyncio.gather(*(connection.wait_closed() for connection in left))

    def force_stop(self) -> None:
        """Make ``stop`` wait no longer."""
        self._stop_now.set()

    # called by connections

    def opened(self, connection: HttpConnection) -> None:
        self.connections.add(connection)
        self._empty.clear()
        if self._draining:
            connection.disable_keep_alive()

    def closed(self, connection: HttpConnection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._empty.set()

    # internal

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

    async def _wait_until_empty(self, seconds: float) -> None:
        """Wait until no connection is left, at most that long."""
        waits = [asyncio.ensure_future(event.wait()) for event in (self._empty, self._stop_now)]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _check_deadlines(self) -> None:
        now = self.loop.time()
        for connection in list(self.connections):
            connection.check_deadlines(now)
        self._deadline_timer = self.loop.call_later(self._interval, self._check_deadlines)
