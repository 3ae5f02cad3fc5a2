"""Connection pool of one engine: a last-in-first-out stack of idle connections, and how to open another.

Last in, first out keeps few connections warm and lets the rest age out before the engine closes them. The idle limit
stays below the 5 s after which common HTTP servers (uvicorn among them) close a silent connection; a connection that
dies in the remaining race is replaced once, unseen.
"""

import asyncio
import time
from collections.abc import Callable

from blade_router.http.upstream.connect import connect
from blade_router.http.upstream.connection import Connection
from blade_router.http.upstream.errors import ConnectFailed, OutOfResources, StaleConnection

IDLE_LIMIT = 4.0
"""Seconds after which an idle connection is not reused."""


_pools: "set[ConnectionPool]" = set()
"""Those that are open."""


def close_idle() -> int:
    """Close the idle connections of all pools; returns how many there were."""
    return sum(pool.close_idle() for pool in _pools)


class ConnectionPool:
    """A pool of connections to ``host:port``. Whoever makes it closes it."""

    def __init__(self, host: str, port: int, *, connect_timeout: float = 1.0) -> None:
        self._host = host
        self._port = port
        self._connect_timeout = connect_timeout
        self._idle: list[Connection] = []
        self._closed = False
        _pools.add(self)

    async def exchange(
        self,
        head: bytes,
        body: bytes,
        attach: Callable[[Connection], None],
        first_byte_timeout: float = 0.0,
        stall_timeout: float = 0.0,
        tail: bytes = b"",
    ) -> Connection:
        """Send a request and wait for the response's status and headers.

        ``attach`` gets each connection before anything is written to it, so that the caller can abort it. The
        connection that is returned must go back through ``release``.

        Raises:
            UpstreamError: no connection, or it failed before the headers. A reused connection that dies without a
                byte is replaced by a new one first, once.
        """
        connection = self._take_idle()
        reused, stale = connection is not None, False
        while True:
            if connection is None:
                try:
                    connection = await self.connect()
                except ConnectFailed as error:
                    error.sent = stale
                    raise
            try:
                attach(connection)
                connection.send(head, body, first_byte_timeout, stall_timeout, tail)
                if not connection.answered:
                    await connection.response()
                return connection
            except BaseException as failure:
                self.discard(connection)
                if not reused or not isinstance(failure, StaleConnection):
                    raise
            connection, reused, stale = None, False, True

    async def connect(self) -> Connection:
        """Open a new connection. Where nothing is left for one, all pools close their idle ones first.

        Raises:
            ConnectFailed: it could not be opened within the connect time-out.
        """
        try:
            return await connect(self._host, self._port, self._connect_timeout)
        except OutOfResources:
            if not close_idle():
                raise
        await asyncio.sleep(0)  # then their descriptors are free
        return await connect(self._host, self._port, self._connect_timeout)

    def release(self, connection: Connection) -> None:
        """Return a connection to the pool: kept when its exchange is complete, dropped otherwise."""
        if self._closed or not connection.reusable:
            self.discard(connection)
            return
        connection.finish()
        connection.idle_since = time.monotonic()
        self._idle.append(connection)

    @staticmethod
    def discard(connection: Connection) -> None:
        if not connection.closed:
            connection.abort(ConnectionAbortedError("the router dropped the connection"))
        connection.forget()

    def prune(self) -> None:
        """Close connections that have been idle for too long."""
        oldest = time.monotonic() - IDLE_LIMIT
        keep = [connection for connection in self._idle if not connection.closed and connection.idle_since > oldest]
        for connection in set(self._idle).difference(keep):
            self.discard(connection)
        self._idle = keep

    def close(self) -> None:
        """Close the idle connections, and each busy one when it is released."""
        self._closed = True
        _pools.discard(self)
        self.close_idle()

    def close_idle(self) -> int:
        """Close the idle connections; returns how many there were."""
        idle, self._idle = self._idle, []
        for connection in idle:
            self.discard(connection)
        return len(idle)

    def _take_idle(self) -> Connection | None:
        oldest = time.monotonic() - IDLE_LIMIT
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed and connection.idle_since > oldest:
                return connection
            self.discard(connection)
        return None
