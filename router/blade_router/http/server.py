"""The HTTP server: serving, and a graceful shutdown that clients hardly notice."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, NoReturn, cast

from blade_router.http import head
from blade_router.http.accept.acceptor import Acceptor
from blade_router.http.accept.connection_table import MAX_CONNECTIONS, STALLED_SECONDS, ConnectionTable
from blade_router.http.client import Client
from blade_router.http.connection import Handler, HttpConnection
from blade_router.http.cors import Cors
from blade_router.http.discard_rate import DiscardRate
from blade_router.http.errors import Refused
from blade_router.http.head import RawRequest
from blade_router.http.request_reader import HttpLimits

logger = logging.getLogger("blade_router.http")

UPLOAD_SCAN_SECONDS = 0.1
"""Least seconds between two searches for a stalled upload to give up."""
RESERVE_SECONDS = 2.0
"""Seconds a client has to send its request on a connection that was let in beyond the limit."""
RELIEF = 8
"""Connections closed at once when there is no descriptor left."""
DEADLINE_CHECK_SECONDS = 1.0
"""Most seconds between two checks of the connections' deadlines: a timer for each request would cost more."""


class Server:
    """Serves ``handler`` on sockets; made inside the event loop.

    Args:
        handler: serves one request; exceptions other than ``ClientGone`` become a 500.
        lame_duck: seconds at the end in which an open connection may bring another request.
        drain_timeout: seconds that in-flight requests have to finish after that.
        max_connections: limit of open connections.
        max_connections_per_address: limit of those from one address; 0 for none.
        exempt: addresses without that limit.
        comment_interval: seconds of silence after which a stream gets a comment; 0: never.
        essential: paths that are served also when every connection is in use (liveness).
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
        max_connections: int = MAX_CONNECTIONS,
        max_connections_per_address: int = 0,
        exempt: Callable[[str], bool] = lambda address: False,
        essential: Collection[bytes] = (),
        comment_interval: float = 0.0,
    ) -> None:
        self.handler = handler
        self.limits = replace(limits, relieve=self._give_up_upload)
        self.reserve_limits = replace(
            self.limits,
            header_timeout=min(limits.header_timeout, RESERVE_SECONDS),
            body_deadline=RESERVE_SECONDS,
            keep_alive=RESERVE_SECONDS,
            check_head=_refuse_upload,
        )
        self.refused = refused
        self.cors: Cors | None = None
        self.loop = asyncio.get_running_loop()
        self.connections: set[HttpConnection] = set()
        self.discards = DiscardRate()
        self.table = ConnectionTable(self.loop.time, max_connections, max_connections_per_address, exempt)
        self.comment_interval = comment_interval
        self.closing = False
        """Connections close as soon as no request is in flight on them."""
        self._draining = False
        self._lame_duck = lame_duck
        self._drain_timeout = drain_timeout
        self._tls = tls
        self._essential = frozenset(essential)
        self._acceptors: list[Acceptor] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._stalled_uploads: list[tuple[int, float, HttpConnection]] = []
        self._uploads_scanned_at = -UPLOAD_SCAN_SECONDS
        self._empty = asyncio.Event()
        self._empty.set()
        self._stop_now = asyncio.Event()
        self._interval = min(
            *(DEADLINE_CHECK_SECONDS, limits.header_timeout / 4, limits.body_timeout / 4, limits.keep_alive / 4),
            comment_interval / 4 or DEADLINE_CHECK_SECONDS,
        )
        self._deadline_timer: asyncio.TimerHandle | None = None

    @property
    def draining(self) -> bool:
        """It is about to stop."""
        return self._draining

    async def start(self, listeners: Sequence[socket.socket]) -> None:
        """Accept from these sockets."""
        for listener in listeners:
            acceptor = Acceptor(self.loop, listener, self._accepted, self._out_of_descriptors)
            self._acceptors.append(acceptor)
            acceptor.start()
        self._check_deadlines()

    async def stop(self) -> None:
        """Drain: stop listening, serve ``lame_duck`` seconds more, close idle connections, then wait for the rest.

        A connection closed just when its client sends the next request costs that client an error. So for a while
        requests on open connections are served as ever, with ``connection: close``.
        """
        self._draining = True
        for connection in self.connections:
            connection.disable_keep_alive()
        self._stop_listening()
        await asyncio.sleep(0)
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
        await asyncio.sleep(0)  # what was accepted last is made
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
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

    async def handler_for_reserve(self, request: RawRequest, client: Client) -> None:
        """Serve a request on a connection beyond the limit: it is refused, unless it is essential."""
        if request.path in self._essential:
            await self.handler(request, client)
            return
        refusal = head.too_many_connections()
        self.refused(refusal)
        await client.refuse(refusal)

    def opened(self, connection: HttpConnection) -> None:
        self.connections.add(connection)
        self._empty.clear()
        if self._draining:
            connection.disable_keep_alive()

    def closed(self, connection: HttpConnection) -> None:
        self.table.discard(connection)
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
        for acceptor in self._acceptors:
            acceptor.stop()
        self._acceptors.clear()

    def _accepted(self, sock: socket.socket, address: str, last: bool) -> None:
        """Take over a connection; ``last``: there was no other descriptor left for it."""
        table = self.table
        reserve = last or not table.make_room(address)
        connection = HttpConnection(self, address, reserve=reserve)
        if reserve:
            table.add_reserve(connection)
        else:
            table.add(connection)
        task = self.loop.create_task(self._open(connection, sock))
        if self._tls is not None:
            # Without a handshake the connection is made at once, and uvloop forgets to report the end of one that is
            # cancelled in just that moment.
            connection.opening = task
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, connection: HttpConnection, sock: socket.socket) -> None:
        """Make the connection; with TLS this waits for the handshake."""
        try:
            protocol = cast(asyncio.Protocol, connection)
            await self.loop.connect_accepted_socket(lambda: protocol, sock, **self._tls_options())
        except (OSError, asyncio.CancelledError):  # it broke, was too slow, spoke no TLS, or was closed to make room
            self.table.discard(connection)
        finally:
            connection.opening = None

    def _out_of_descriptors(self) -> None:
        """Close connections on which nothing happens, so that there are descriptors for others."""
        for _ in range(RELIEF):
            if not self.table.evict_one():
                break

    def _give_up_upload(self) -> bool:
        """Give up the stalled upload that takes most memory; False: there is none."""
        now = self.loop.time()
        for scanned in (False, True):
            while self._stalled_uploads:
                _, since, connection = self._stalled_uploads.pop()
                rank = connection.idleness()
                if rank is not None and rank[1] == since and connection.upload:
                    connection.give_up_upload()
                    return True
            if scanned or now - self._uploads_scanned_at < UPLOAD_SCAN_SECONDS:
                break
            self._uploads_scanned_at = now
            found = ((each.upload, each.idleness(), each) for each in self.connections if each.upload)
            self._stalled_uploads = sorted(
                ((size, rank[1], each) for size, rank, each in found if rank and rank[1] <= now - STALLED_SECONDS),
                key=lambda each: each[:2],
            )
        return False

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


def _refuse_upload(request: RawRequest) -> NoReturn:
    """Refuse a large body on a connection beyond the limit.

    Raises:
        Refused: 503, always.
    """
    raise head.too_many_connections()
