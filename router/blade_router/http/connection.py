"""One client's connection: requests are read, answered one after another, and refused where they break a rule.

A client that has closed its side counts as gone, also when it would still read (a half-closed socket): from here the
two look the same, and an engine must not go on generating for nobody. nginx decides likewise. Therefore the
connection is read while an answer is under way, up to a bound for what a client sends ahead.
"""

import asyncio
import enum
import logging
import math
from collections import deque
from typing import TYPE_CHECKING, cast

import httptools

from blade_router.client import Client, Flow
from blade_router.errors import ClientGone, Headers, Refused
from blade_router.http import head
from blade_router.http.head import RawRequest
from blade_router.http.writing import CONTINUE

if TYPE_CHECKING:
    from blade_router.http.server import Server

logger = logging.getLogger("blade_router.http")

READ_AHEAD = 64 * 1024
"""Bytes a client may send while its answer is under way before it is not read any more."""
MAX_PIPELINED = 64
"""Requests that may wait for their turn; what comes after them is not read, and the connection closes."""
LINGER = 2.0
"""Seconds a refused client may go on sending, so that it gets to read why: a reset would take the answer with it."""
STALLED = 300.0
"""Seconds a client may go without reading anything of its answer."""


class Stage(enum.Enum):
    """What the next byte belongs to."""

    IDLE = "between requests"
    HEAD = "head"
    BODY = "body"
    OVER = "nothing: what still comes is dropped"


IDLE, HEAD, BODY, OVER = Stage  # an enum's attributes cost several times a global's


class HttpConnection(asyncio.Protocol):
    """The protocol. One task answers its requests in turn; ``expire`` is called now and then to keep the deadlines."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._loop = server.loop
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._flow: Flow
        self._task: asyncio.Task[None]
        self._client: Client | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._waiting: deque[RawRequest | Refused] = deque()
        self.stage = IDLE
        self._deadline = math.inf
        """When to look at the connection while nothing is being answered."""
        self._stalled = math.inf
        """When to give up on a client that does not read its answer."""
        self._refusal: Refused | None = None
        """What a callback of the parser found wrong."""
        self._ahead = 0
        self.not_read = False
        """The client has sent too much ahead."""
        # the request that is being read
        self._target = b""
        self._headers: Headers = []
        self._request: RawRequest | None = None
        self._upgraded: RawRequest | None = None
        self._body: bytes | bytearray = b""
        self._bytes = 0
        """Of its head so far, or of its body with the framing."""

    # what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes, only equal to them
        self._flow = Flow(cast(asyncio.Transport, transport))
        self._deadline = self._loop.time() + self._server.limits.keep_alive
        self._task = self._loop.create_task(self._serve())
        self._server.opened(self)

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            return
        self._feed(data)
        if self.stage is not IDLE:
            self._unfinished(len(data))
        if self._client is not None:
            self._ahead += len(data)
            if self._ahead > READ_AHEAD and not self.not_read:
                self.not_read = True
                self._flow.transport.pause_reading()

    def eof_received(self) -> None:
        """The transport closes itself (see above)."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.stage = OVER
        self._parser = None  # it holds bound methods of this object: break the cycle
        self._waiting.clear()
        self._flow.lost = True
        self._flow.resume()
        if self._client is not None:
            self._client.lost()
        self._wake()
        self._server.closed(self)

    def pause_writing(self) -> None:
        self._flow.pause()
        self._stalled = self._loop.time() + STALLED

    def resume_writing(self) -> None:
        self._flow.resume()

    # what the server calls

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
            if self._flow.paused and now > self._stalled:
                self.abort()
        elif now < self._deadline:
            pass
        elif self.stage is HEAD:
            self._refuse(_too_slow(f"the head was not complete within {self._server.limits.header_timeout:g} s"))
        elif self.stage is BODY:
            self._refuse(_too_slow(f"no byte of the body came for {self._server.limits.body_timeout:g} s"))
        elif self.stage is IDLE:
            self.close()
        else:
            self.abort()

    def close(self) -> None:
        """Close once what was written has been sent."""
        self._stop_reading()
        self._deadline = self._loop.time() + STALLED
        self._flow.transport.close()

    def abort(self) -> None:
        self._flow.transport.abort()

    async def ended(self) -> None:
        """Cancel what is left of its task, and wait for it."""
        self._task.cancel()
        await asyncio.wait((self._task,))

    # what the parser calls

    def on_message_begin(self) -> None:
        if len(self._waiting) >= MAX_PIPELINED:
            self._refusal = head.bad_request(f"more than {MAX_PIPELINED} requests are waiting on this connection")
            raise self._refusal
        self.stage = HEAD
        self._deadline = self._loop.time() + self._server.limits.header_timeout
        self._target = b""
        self._headers = []
        self._bytes = 0

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.stage is not HEAD:
            return  # a trailer
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self.stage is not HEAD:
            return
        parser = self._parser
        assert parser is not None
        if self._upgraded is not None:
            self._read_body(self._upgraded)
            return
        try:
            if len(self._headers) > head.MAX_HEADERS:
                raise head.bad_request(f"the request has more than {head.MAX_HEADERS} headers")
            if self._bytes > head.MAX_HEAD_BYTES - READ_AHEAD:
                self._measure()
            request = head.read_head(
                parser.get_method(),
                self._target,
                parser.get_http_version(),
                parser.should_keep_alive(),
                self._headers,
            )
            if request.length is not None and request.length > self._server.limits.max_body_bytes:
                raise head.body_too_large(self._server.limits.max_body_bytes)
        except Refused as refusal:
            self._refusal = refusal
            raise
        self._read_body(request)
        if request.expects_continue:
            self._encourage()

    def on_body(self, body: bytes) -> None:
        if not self._body:
            self._body = body
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)  # many small chunks as objects would take far more than their size
            self._body += body
        if len(self._body) > self._server.limits.max_body_bytes:
            self._refusal = head.body_too_large(self._server.limits.max_body_bytes)
            raise self._refusal

    def on_message_complete(self) -> None:
        request = self._request
        assert request is not None
        self._request = self._upgraded = None
        self.stage = IDLE
        self._deadline = math.inf
        request.body = self._body if isinstance(self._body, bytes) else bytes(self._body)
        self._body = b""
        self._waiting.append(request)
        self._wake()

    # inside: reading

    def _feed(self, data: bytes) -> None:
        while data and self._parser is not None:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = self._ignore_upgrade(data[upgrade.args[0] :])
            except httptools.HttpParserError as error:
                self._refuse(self._refusal or head.bad_request(f"this is no valid HTTP request: {error}"))

    def _read_body(self, request: RawRequest) -> None:
        self.stage = BODY
        self._request = request
        self._body = b""
        self._bytes = 0

    def _unfinished(self, size: int) -> None:
        """A request is still being read: keep its limits."""
        self._bytes += size
        if self.stage is HEAD:
            if self._bytes > head.MAX_HEAD_BYTES:
                self._refuse(head.head_too_large())
        elif self.stage is BODY:
            self._deadline = self._loop.time() + self._server.limits.body_timeout
            # a chunk of one byte needs six: anything beyond is extensions or trailers without end
            if self._bytes > head.MAX_HEAD_BYTES + READ_AHEAD * 4 + 8 * len(self._body):
                self._refuse(head.bad_request("the framing of the body is larger than the body"))

    def _measure(self) -> None:
        """Refuse a head that came in few large pieces, of which the last one ended it."""
        size = len(self._target) + sum(len(name) + len(value) + 4 for name, value in self._headers)
        if size > head.MAX_HEAD_BYTES:
            raise head.head_too_large()

    def _refuse(self, refusal: Refused) -> None:
        """Answer this when it is its turn, and read nothing any more."""
        self._parser = None
        self._request = None
        self._body = b""
        last = self._waiting[-1] if self._waiting else None
        over = isinstance(last, RawRequest) and not last.keep_alive
        self.stage = OVER
        self._deadline = math.inf
        if not over and not (self._client is not None and not self._client.keep_alive and last is None):
            self._waiting.append(refusal)
            self._wake()

    def _ignore_upgrade(self, rest: bytes) -> bytes:
        """Another protocol was offered, and HTTP/1.1 stays: go on where llhttp stopped, behind the head.

        Its body, which llhttp takes for the other protocol, is read by a new parser, which is told how long it is:
        returns what to feed it.
        """
        request = self._waiting.pop()
        assert isinstance(request, RawRequest)
        framing = b"content-length: %d" % (request.length or 0)
        if request.header(b"transfer-encoding"):
            framing = b"transfer-encoding: chunked"
        self._upgraded = request
        self._parser = httptools.HttpRequestParser(self)
        return b"POST / HTTP/1.1\r\n%b\r\n\r\n%b" % (framing, rest)

    def _encourage(self) -> None:
        """Tell a client that asked first to send its body, unless the answer of another request is under way."""
        if self._client is None and not self._waiting and self._request is not None:
            self._flow.transport.write(CONTINUE)
            self._request.expects_continue = False

    # inside: answering

    async def _serve(self) -> None:
        """Answer requests in the order they came, until the connection ends."""
        while not self._flow.lost:
            if not self._waiting:
                self._waiter = self._loop.create_future()
                await self._waiter
                continue
            request = self._waiting.popleft()
            if isinstance(request, Refused):
                self._answer_refusal(request)
                return
            await self._answer(request)

    async def _answer(self, request: RawRequest) -> None:
        server = self._server
        bodiless = request.method == b"HEAD"
        extra = server.cors.headers(request) if server.cors is not None else []
        self._client = client = Client(
            self._flow, http11=request.http11, keep_alive=request.keep_alive, bodiless=bodiless, extra=extra
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
        if self._waiting:
            return
        now = self._loop.time()
        limits = self._server.limits
        if self.stage is IDLE:
            self._deadline = now + limits.keep_alive
        else:
            self._deadline = now + (limits.header_timeout if self.stage is HEAD else limits.body_timeout)
            if self._request is not None and self._request.expects_continue:
                self._encourage()

    def _answer_refusal(self, refusal: Refused) -> None:
        self._server.refused(refusal)
        client = Client(self._flow, keep_alive=False)
        client.refuse(refusal)
        transport = self._flow.transport
        if transport.can_write_eof():
            transport.write_eof()
        self._stop_reading()
        if self.not_read:
            transport.resume_reading()
        self._deadline = self._loop.time() + LINGER

    def _stop_reading(self) -> None:
        self.stage = OVER
        self._parser = None
        self._waiting.clear()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _too_slow(message: str) -> Refused:
    return Refused(408, message + "; send the request in one go", code="request_timeout")
