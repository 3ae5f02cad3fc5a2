"""HTTP GETs of the same many servers every few seconds, each on a connection that is kept for the next one.

It costs a fraction of the CPU of a general client: a request is one write, its response as a rule one read. Bounded are
the requests in flight, the connections that are kept, the bytes of a response and the seconds that it may take.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from blade_operator.descriptors import affordable
from blade_operator.http_response import Response, ResponseReader

MOST_REQUESTS = 256
"""Requests in flight; others wait for one of them."""
MOST_KEPT = 4096
"""Connections that are kept. As many are closed after each request as there are no file descriptors for."""
_SHARE = 0.25
"""Of the file descriptors."""
IDLE_SECONDS = 30.0
"""Seconds after which a connection that nobody uses is closed: its server is gone, or not asked any more."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A server, and who it is: whoever has its address later is another one, with connections of its own."""

    identity: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """Host and port, as they stand in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class KeptConnections:
    """A client for :class:`Peer`. ``timeout``: seconds for one request, its connection included."""

    def __init__(self, timeout: float, most_requests: int = MOST_REQUESTS, most_kept: int | None = None) -> None:
        self._timeout = timeout
        self._most_kept = affordable(MOST_KEPT, _SHARE) if most_kept is None else most_kept
        self._places = asyncio.Semaphore(most_requests)
        self._idle: OrderedDict[Peer, tuple[_Connection, float]] = OrderedDict()
        """At most one connection of each peer, and since when it is idle; the longest first."""
        self._sweep: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Number of connections that are kept."""
        return len(self._idle)

    async def get(self, peer: Peer, path: str, headers: Mapping[str, str]) -> Response:
        """The response of ``peer``, whatever its status.

        Raises:
            OSError: there is no connection, or it broke; TimeoutError is one.
            ValueError: the response is no HTTP, or too long.
        """
        fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        request = f"GET {path} HTTP/1.1\r\nhost: {peer.authority}\r\n{fields}\r\n".encode("latin-1")
        async with self._places, asyncio.timeout(self._timeout):
            return await self._request(peer, request)

    def close(self) -> None:
        """Close what is idle; what is in use is not kept any more."""
        self._most_kept = 0
        self._drop_idle()

    async def _request(self, peer: Peer, request: bytes) -> Response:
        kept = self._take(peer)
        if kept is not None:
            try:
                return self._keep(peer, kept, await kept.request(request))
            except ConnectionError:
                if kept.has_responded:
                    raise
                # A server closes a connection that was idle for long, and just now did.
        connection = await _connect(peer)
        return self._keep(peer, connection, await connection.request(request))

    def _take(self, peer: Peer) -> _Connection | None:
        connection, _ = self._idle.pop(peer, (None, 0.0))
        return connection if connection is not None and connection.is_reusable else None

    def _keep(self, peer: Peer, connection: _Connection, response: Response) -> Response:
        if not connection.is_reusable or not self._most_kept or peer in self._idle:
            connection.close()
            return response
        loop = asyncio.get_running_loop()
        self._idle[peer] = connection, loop.time()
        if len(self._idle) > self._most_kept:
            _, (oldest, _) = self._idle.popitem(last=False)
            oldest.close()
        if self._sweep is None:
            self._sweep = loop.call_later(IDLE_SECONDS, self._drop_idle)
        return response

    def _drop_idle(self) -> None:
        """Close what has been idle for long, or that the server closed."""
        loop = asyncio.get_running_loop()
        oldest = loop.time() - IDLE_SECONDS if self._most_kept else float("inf")
        for peer, (connection, since) in list(self._idle.items()):
            if since <= oldest or not connection.is_reusable:
                del self._idle[peer]
                connection.close()
        if self._sweep is not None:
            self._sweep.cancel()
        self._sweep = loop.call_later(IDLE_SECONDS, self._drop_idle) if self._idle else None


class _Connection(asyncio.Protocol):
    """One connection, with at most one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reader = ResponseReader()
        self._waiter: asyncio.Future[Response] | None = None
        self.is_reusable = True
        """Whether another request may follow."""

    @property
    def has_responded(self) -> bool:
        """Whether a part of the response to the last request came."""
        return self._reader.has_begun

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    async def request(self, request: bytes) -> Response:
        """Send ``request``; its response. See :meth:`KeptConnections.get`."""
        self._reader = ResponseReader()
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the connection is closed")
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            response = await self._waiter
        except BaseException:
            self.close()  # the response may come yet
            raise
        finally:
            self._waiter = None
        self.is_reusable = self.is_reusable and response.keeps_alive
        return response

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._waiter is None or self._waiter.done():
            self.close()  # nobody asked for it
            return
        try:
            response = self._reader.feed(data)
        except ValueError as error:
            self._waiter.set_exception(error)
            return
        if response is not None:
            self._waiter.set_result(response)

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.is_reusable = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ConnectionResetError(f"the connection broke: {error or 'it was closed'}"))

    def close(self) -> None:
        """Close it at once."""
        self.is_reusable = False
        if self._transport is not None:
            self._transport.abort()


async def _connect(peer: Peer) -> _Connection:
    _, connection = await asyncio.get_running_loop().create_connection(_Connection, peer.host, peer.port)
    return connection
