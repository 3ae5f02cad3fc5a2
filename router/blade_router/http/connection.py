"""One client's connection: requests are read, answered one after another, and refused where they break a rule.

A client that has closed its side counts as gone, also when it would still read (a half-closed socket): from here the
two look the same, and an engine must not go on generating for nobody. nginx decides likewise. Therefore the
connection is read while an answer is under way, up to a bound for what a client sends ahead.
"""

import asyncio
import logging
import math
from typing import TYPE_CHECKING, cast

from blade_router.client import Client, Flow
from blade_router.errors import ClientGone, Refused
from blade_router.http.head import RawRequest
from blade_router.http.reading import RequestReader, Stage
from blade_router.http.writing import CONTINUE

if TYPE_CHECKING:
    from blade_router.http.server import Server

logger = logging.getLogger("blade_router.http")

READ_AHEAD = 64 * 1024
"""Bytes a client may send while its answer is under way before it is not read any more."""
LINGER = 2.0
"""Seconds a refused client may go on sending, so that it gets to read why: a reset would take the answer with it."""
STALLED = 300.0
"""Seconds a client may go without reading anything of its answer."""


class HttpConnection(asyncio.Protocol):
    """The protocol. One task answers its requests in turn; ``expire`` is called now and then to keep the deadlines."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._loop = server.loop
        self._reader = RequestReader(server.loop, server.limits, self._wake, self._encourage)
        self._waiting = self._reader.waiting
        self._flow: Flow
        self._task: asyncio.Task[None]
        self._client: Client | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._closing_at = math.inf
        """When to break the connection after its last answer."""
        self._stalled_at = math.inf
        """When to give up on a client that does not read its answer."""
        self._ahead = 0
        self.not_read = False
        """The client has sent too much ahead."""

    # what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes, only equal to them
        self._flow = Flow(cast(asyncio.Transport, transport))
        self._task = self._loop.create_task(self._serve())
        self._server.opened(self)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        if self._client is not None:
            self._ahead += len(data)
            if self._ahead > READ_AHEAD and not self.not_read:
                self.not_read = True
                self._flow.transport.pause_reading()

    def eof_received(self) -> None:
        """The transport closes itself (see above)."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._reader.leave()
        self._flow.lost = True
        self._flow.resume()
        if self._client is not None:
            self._client.lost()
        self._wake()
        self._server.closed(self)

    def pause_writing(self) -> None:
        self._flow.pause()
        self._stalled_at = self._loop.time() + STALLED

    def resume_writing(self) -> None:
        self._flow.resume()

    # what the server calls

    @property
    def stage(self) -> Stage:
        """What is being read."""
        return self._reader.stage

    @property
    def receiving(self) -> bool:
        """The body of a request is under way; its time-out sees to its end."""
        return self._reader.stage is Stage.BODY

    @property
    def busy(self) -> bool:
        """A request is being answered, or waits for it."""
        return self._client is not None or bool(self._waiting)

    @property
    def answering(self) -> bool:
        """The beginning of an answer has been sent."""
        return self._client is not None and self._client.status > 0

    @property
    def stalls(self) -> bool:
        """The client reads more slowly than its answer comes."""
        return self._flow.paused

    @property
    def transport(self) -> asyncio.Transport:
        return self._flow.transport

    def leave(self) -> None:
        """Answers from now on are the last ones of this connection."""
        self._flow.last = True

    def expire(self, now: float) -> None:
        """Act on a deadline that has passed."""
        if self._client is not None:
            if self._flow.paused and now > self._stalled_at:
                self.abort()
        elif now > self._closing_at:
            self.abort()
        elif now > self._reader.deadline and not self._reader.time_out():
            self.close()

    def close(self) -> None:
        """Close once what was written has been sent."""
        self._end(STALLED)
        self._flow.transport.close()

    def abort(self) -> None:
        self._flow.transport.abort()

    async def ended(self) -> None:
        """Cancel what is left of its task, and wait for it."""
        self._task.cancel()
        await asyncio.wait((self._task,))

    # inside

    async def _serve(self) -> None:
        """Answer requests in the order they came, until the connection ends."""
        while not self._flow.lost:
            if not self._waiting:
                self._waiter = self._loop.create_future()
                await self._waiter
                continue
            request = self._waiting.popleft()
            if isinstance(request, Refused):
                self._refuse(request)
                return
            await self._answer(request)

    async def _answer(self, request: RawRequest) -> None:
        server = self._server
        self._client = client = Client(
            self._flow,
            http11=request.http11,
            keep_alive=request.keep_alive,
            bodiless=request.method == b"HEAD",
            extra=server.cors.headers(request) if server.cors is not None else None,
        )
        self._ahead = 0
        try:
            await server.handler(request, client)
        except ClientGone:
            pass
        except Exception:
            logger.exception("a request failed: %s %s", request.method, request.path)
            if not client.status and not client.gone:
                await client.refuse(Refused(500, "the router failed; its log says why", code="internal_error"))
        finally:
            self._client = None
        if self._flow.lost:
            return
        if client.unended and not client.complete:
            self.abort()  # else nobody could tell that it is not all
        elif not client.complete or not client.keep_alive or server.closing:
            self.close()
        else:
            self._next()

    def _next(self) -> None:
        """An answer is complete, and the connection stays."""
        if self.not_read:
            self.not_read = False
            self._flow.transport.resume_reading()
        if not self._waiting:
            self._reader.go_on()

    def _refuse(self, refusal: Refused) -> None:
        """Answer what is no request, and let the client read that."""
        self._server.refused(refusal)
        Client(self._flow, keep_alive=False).refuse(refusal)
        transport = self._flow.transport
        if transport.can_write_eof():
            transport.write_eof()
        if self.not_read:
            transport.resume_reading()
        self._end(LINGER)

    def _end(self, seconds: float) -> None:
        """Nothing is answered any more; the client has that long to take what was written."""
        self._reader.stop()
        self._waiting.clear()
        self._closing_at = self._loop.time() + seconds

    def _encourage(self) -> None:
        """Tell a client that asked first to send its body, unless the answer of another request is under way."""
        request = self._reader.request
        if self._client is None and not self._waiting and request is not None:
            self._flow.transport.write(CONTINUE)
            request.expects_continue = False

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
