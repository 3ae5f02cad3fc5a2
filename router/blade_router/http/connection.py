"""One client's connection: requests are read, served in order, and refused where they break a rule.

A client that has closed its side counts as gone, also when it would still read (a half-closed socket): from here the
two look the same, and an engine must not go on generating for nobody. nginx decides likewise. Therefore the
connection is read while a response is being sent, up to a bound for what a client pipelines.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

from blade_router.http import head
from blade_router.http.accept.connection_table import Idleness, Rank
from blade_router.http.client import Client, FlowControl
from blade_router.http.cors import Cors
from blade_router.http.discard_rate import DiscardRate
from blade_router.http.errors import ClientGone, Refused
from blade_router.http.head import RawRequest
from blade_router.http.request_reader import HttpLimits, RequestReader, Stage
from blade_router.http.response_head import CONTINUE

logger = logging.getLogger("blade_router.http")

READ_AHEAD = 64 * 1024
"""Bytes a client may send during its response before reading is paused."""
LINGER = 2.0
"""Seconds a refused client may go on sending, so that it gets to read why: a reset would discard the response."""
STALL_TIMEOUT = 300.0
"""Seconds a client may go without reading anything of its response."""


Handler = Callable[[RawRequest, Client], Awaitable[None]]


class ConnectionOwner(Protocol):
    """The server, as its connections know it."""

    handler: Handler
    limits: HttpLimits
    reserve_limits: HttpLimits
    cors: Cors | None
    loop: asyncio.AbstractEventLoop
    discards: DiscardRate
    refused: Callable[[Refused], None]
    closing: bool
    comment_interval: float

    def handler_for_reserve(self, request: RawRequest, client: Client) -> Awaitable[None]: ...

    def opened(self, connection: "HttpConnection") -> None: ...

    def closed(self, connection: "HttpConnection") -> None: ...


class HttpConnection:
    """The server-side protocol: an ``asyncio.Protocol``, without its class, as a compiled one has no interpreted
    parent. One task serves its requests in turn; ``check_deadlines`` is called periodically.

    Args:
        address: the other side's; empty where it has none.
        reserve: it was let in beyond the limit of connections, for one request.
    """

    def __init__(self, server: ConnectionOwner, address: str = "", *, reserve: bool = False) -> None:
        self.address = address
        self.opening: asyncio.Task[None] | None = None
        """Waits for the TLS handshake, where there is one."""
        self._made = False
        self._unwanted = False
        """It is to be closed as soon as it is made."""
        self._accepted_at = server.loop.time()
        self._server = server
        self._loop = server.loop
        self._limits = server.reserve_limits if reserve else server.limits
        self._handler = server.handler_for_reserve if reserve else server.handler
        self._reserve = reserve
        self._reader = RequestReader(server.loop, self._limits, self._wake, self._send_continue)
        self._waiting = self._reader.waiting
        self._flow: FlowControl
        self._task: asyncio.Task[None]
        self._served = False
        """It has had a response."""
        self._refused_at = math.inf
        """When its last request was refused, and it began to linger."""
        self._client: Client | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._closing_at = math.inf
        """When to break the connection after its last response."""
        self._stalled_at = math.inf
        """When to give up on a client that does not read its response."""
        self._ahead = 0
        self.read_paused = False
        """Reading is paused: the client has sent too much ahead."""

    # called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes, only equal to them
        self._flow = FlowControl(cast(asyncio.Transport, transport), self.address)
        self._flow.last_response = self._reserve
        self._made, self.opening = True, None
        self._task = self._loop.create_task(self._serve())
        self._server.opened(self)
        if self._unwanted:
            self.abort()

    def data_received(self, data: bytes) -> None:
        if self._refused_at < math.inf:
            self._discard(len(data))
            return
        self._reader.feed(data)
        if self._client is not None:
            self._ahead += len(data)
            if self._ahead > READ_AHEAD and not self.read_paused:
                self.read_paused = True
                self._flow.transport.pause_reading()

    def eof_received(self) -> None:
        """Do nothing: the transport closes itself (see above)."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._reader.detach()
        self._flow.lost = True
        self._flow.resume()
        if self._client is not None:
            self._client.lost()
        self._wake()
        self._server.closed(self)

    def pause_writing(self) -> None:
        self._flow.pause()
        self._stalled_at = self._loop.time() + STALL_TIMEOUT

    def resume_writing(self) -> None:
        self._flow.resume()

    # called by the server

    @property
    def stage(self) -> Stage:
        """The part of a request that is being read."""
        return self._reader.stage

    @property
    def receiving(self) -> bool:
        """The body of a request is being read; its time-out bounds that."""
        return self._reader.stage is Stage.BODY

    @property
    def busy(self) -> bool:
        """A request is being served, or waits for it."""
        return self._client is not None or bool(self._waiting)

    @property
    def responding(self) -> bool:
        """The head of a response has been sent."""
        return self._client is not None and self._client.status > 0

    @property
    def write_paused(self) -> bool:
        """The client reads more slowly than its response comes."""
        return self._flow.paused

    @property
    def upload(self) -> int:
        """Bytes of memory that an incomplete request of the client takes."""
        return self._reader.charged

    def idleness(self) -> Rank | None:
        """What it waits for, and since when; None while a request is being served, or its response sent."""
        if not self._made:
            return Idleness.HEAD if self.opening is not None else Idleness.FIRST_REQUEST, self._accepted_at
        if self._client is not None or self._waiting or self._flow.lost:
            return None
        reader = self._reader
        match reader.stage:
            case Stage.IDLE:
                return Idleness.NEXT_REQUEST if self._served else Idleness.FIRST_REQUEST, reader.waited_since
            case Stage.HEAD:
                return Idleness.HEAD, reader.waited_since
            case Stage.BODY:
                return Idleness.BODY, reader.waited_since
        return (Idleness.HEAD, self._refused_at) if self._refused_at < math.inf else None

    @property
    def transport(self) -> asyncio.Transport:
        return self._flow.transport

    def disable_keep_alive(self) -> None:
        """Make the next response the last one of this connection."""
        self._flow.last_response = True

    def give_up_upload(self) -> None:
        """Refuse the request that is being read: others need the memory its body takes."""
        self._reader.refuse(head.too_many_bodies())

    def check_deadlines(self, now: float) -> None:
        """Act on a deadline that has passed."""
        if self._client is not None:
            if self._flow.paused and now > self._stalled_at:
                self.abort()
            elif self._server.comment_interval:
                self._client.comment(now, self._server.comment_interval)
        elif now > self._closing_at:
            self.abort()
        elif now > self._reader.deadline and not self._reader.time_out():
            self.close()

    def close(self) -> None:
        """Close once what was written has been sent."""
        self._end(STALL_TIMEOUT)
        self._flow.transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._made:
            self._flow.transport.abort()
            return
        self._unwanted = True
        if self.opening is not None:
            self.opening.cancel()

    async def wait_closed(self) -> None:
        """Cancel what is left of its task, and wait for it."""
        self._task.cancel()
        await asyncio.wait((self._task,))

    # internal

    async def _serve(self) -> None:
        """Serve requests in the order they came, until the connection ends."""
        while not self._flow.lost:
            if not self._waiting:
                self._waiter = self._loop.create_future()
                await self._waiter
                continue
            request = self._waiting.popleft()
            if isinstance(request, Refused):
                self._refuse(request)
                return
            await self._respond(request)
            del request  # its body would stay as long as the connection

    async def _respond(self, request: RawRequest) -> None:
        server = self._server
        self._client = client = Client(
            self._flow,
            http11=request.http11,
            keep_alive=request.keep_alive,
            bodiless=request.method == b"HEAD",
            extra=server.cors.headers(request) if server.cors is not None else None,
            path=request.path,
        )
        self._ahead = 0
        failed = False
        try:
            try:
                await self._handler(request, client)
            except ClientGone:
                pass
            except Exception:
                logger.exception("a request failed: %s %s", request.method, request.path)
                failed = True
            if failed and not client.began and not client.gone:
                await client.refuse(Refused(500, "the router failed; its log says why", code="internal_error"))
        finally:
            self._client = None
            if request.charge is not None:
                request.charge.release()
        if self._flow.lost:
            return
        if client.ends_with_connection and not client.complete:
            self.abort()  # otherwise the client could not tell that it is incomplete
        elif not client.complete or not client.keep_alive or server.closing:
            self.close()
        else:
            self._next()

    def _next(self) -> None:
        """Go on after a complete response: the connection is kept alive."""
        self._served = True
        if self.read_paused:
            self.read_paused = False
            self._flow.transport.resume_reading()
        if not self._waiting:
            self._reader.restart_deadline()

    def _refuse(self, refusal: Refused) -> None:
        """Respond to a malformed request, and let the client read that."""
        self._server.refused(refusal)
        cors = self._server.cors
        extra = cors.headers_for(self._reader.refused_origin) if cors is not None else None
        Client(self._flow, keep_alive=False, extra=extra, path=refusal.path).refuse(refusal)
        transport = self._flow.transport
        if transport.is_closing():
            return  # writing found that the client is gone
        if transport.can_write_eof():
            transport.write_eof()
        if self.read_paused:
            transport.resume_reading()
        self._refused_at = self._loop.time()
        self._end(LINGER)

    def _discard(self, size: int) -> None:
        """A refused client goes on sending: not faster than all of them may."""
        pause = self._server.discards.pause(size, self._loop.time())
        if pause:
            self._flow.transport.pause_reading()
            self._loop.call_later(min(pause, LINGER), self._read_on)

    def _read_on(self) -> None:
        if not (self._flow.lost or self._flow.transport.is_closing()):
            self._flow.transport.resume_reading()

    def _end(self, seconds: float) -> None:
        """Serve nothing any more; the client has that long to take what was written."""
        self._reader.stop()
        self._reader.drop_waiting()
        self._closing_at = self._loop.time() + seconds

    def _send_continue(self) -> None:
        """Send ``100 Continue`` to a client that waits for it, unless another request's response is being sent."""
        request = self._reader.request
        if self._client is None and not self._waiting and request is not None:
            self._flow.transport.write(CONTINUE)
            request.expects_continue = False

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
