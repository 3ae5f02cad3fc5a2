"""One HTTP/1.1 connection, to an engine or to the Kubernetes API.

General HTTP clients cost several times more per request than the rest of the router together, so the data path has
its own: an ``asyncio.Protocol`` around the llhttp parser that does one exchange at a time and nothing else. Reading
pauses while the consumer is slow (backpressure); errors say whether the response had begun, which decides on a retry.

An engine may be broken, so what it can make the router keep or wait for is bounded: the head of a response in bytes
and seconds, and whatever else is neither body nor end (chunk extensions, trailers, interim responses) in bytes.
"""

import asyncio
import contextlib
import math
import socket
from typing import Final, cast

import httptools

from blade_router.compiled.attributes import mypyc_attr
from blade_router.http.errors import Headers
from blade_router.http.upstream.chunk import whole_chunk
from blade_router.http.upstream.errors import (
    BadResponse,
    ConnectionLost,
    FirstByteTimeout,
    StaleConnection,
    Stalled,
)

COPY_LIMIT: Final = 64 * 1024
"""Bytes up to which copying a body costs less than sending it in parts: uvloop's fast path takes one object."""
HIGH_WATER = 256 * 1024
"""Bytes of unread body at which the connection stops reading from the engine."""

MAX_OVERHEAD = 64 * 1024
"""Bytes that may come in a row without any of a body: a head, trailers. (One read more: they are counted after it.)"""
HEAD_SECONDS = 10.0
"""From the first byte of a head to its end. How long the engine takes to the first byte is another matter."""

DEAD_AFTER = 6
"""Seconds after which a peer counts as dead whose kernel acknowledges nothing, neither data nor keep-alive probes.

A machine that crashed, or a pod whose address was taken away, sends nothing: without this a request to it would wait
for ever. An engine that is merely slow still has a kernel that acknowledges.
"""
SLOW_AFTER = 60
"""The same while a large body is sent: with a full receive window, a live kernel acknowledges nothing new either."""

_FRAMING = (b"content-length", b"transfer-encoding")


@mypyc_attr(allow_interpreted_subclasses=True)
class Sink:
    """Takes a response as it comes. A class, as calls of its methods cost less than those of a function."""

    def put(self, part: bytes) -> bool:
        """Take a part of the body; False: no more for now."""
        raise NotImplementedError


class Connection:
    """A connection and its current exchange: an ``asyncio.Protocol``, without its class, as a compiled one has no
    interpreted parent.

    ``send`` starts an exchange, ``response`` waits for status and headers, ``read`` returns body bytes as they come
    and ``b""`` at the end. ``abort`` may be called at any time and makes the waiting call raise the given exception.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = []
        self.complete = False
        """The whole response has arrived (parts of it may still be unread)."""
        self.closed = False
        self.idle_since = 0.0
        self._loop = asyncio.get_running_loop()
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._paused = False
        self._exchanges = 0
        self._busy = False
        self._received = False
        self._head_complete = False
        self._overhead = 0
        self._keep_alive = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._sink: Sink | None = None
        self._in_head = False
        self._between_chunks = False
        """The last chunk that the parser began is complete."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._extended_timeout = False
        self._first_byte_timeout = 0.0
        self._stall_timeout = 0.0
        self._timer: asyncio.TimerHandle | None = None
        """Checks both. It outlives exchanges: setting and cancelling one for each would cost 5 us a request."""
        self._fires_at = math.inf
        self._sent_at = 0.0
        self._read_at = 0.0
        """When the last bytes of the body came; 0 before the first."""

    # called by the router

    def send(
        self,
        head: bytes,
        body: bytes,
        first_byte_timeout: float = 0.0,
        stall_timeout: float = 0.0,
        tail: bytes = b"",
    ) -> None:
        """Write one request. ``head`` ends with the empty line, or some of the body.

        Args:
            tail: what follows ``body``.
            first_byte_timeout: seconds until the first byte of the response's body; 0: for ever.
            stall_timeout: seconds without a byte after that; 0: for ever.
        """
        self._first_byte_timeout = first_byte_timeout
        self._stall_timeout = stall_timeout
        self.status = 0
        self.headers = []
        self.complete = self._received = self._head_complete = self._keep_alive = self._between_chunks = False
        self._busy = True
        self._read_at = 0.0
        self._exchanges += 1
        if first_byte_timeout or stall_timeout:
            self._sent_at = now = self._loop.time()
            self._check_at(now + (min(first_byte_timeout, stall_timeout) or first_byte_timeout or stall_timeout))
        if self._transport is None or self.closed:
            self._fail(StaleConnection("the connection closed while it was idle"))
        elif len(body) + len(tail) < COPY_LIMIT:
            if self._extended_timeout:
                self._set_user_timeout(DEAD_AFTER)
            self._transport.write(head + body + tail if tail else head + body)
        else:
            self._set_user_timeout(SLOW_AFTER)
            self._transport.writelines((head, body, tail) if tail else (head, body))

    @property
    def answered(self) -> bool:
        """``status`` and ``headers`` are there."""
        return self._head_complete

    async def response(self) -> None:
        """Wait until ``status`` and ``headers`` are there.

        Raises:
            UpstreamError: the connection failed before.
        """
        while not self._head_complete:
            await self._wait()

    def read_now(self) -> bytes:
        """The body bytes that have arrived; ``b""`` when there are none yet, or no more."""
        return self._take() if self._chunks else b""

    async def read(self) -> bytes:
        """The body bytes that have arrived, waiting for at least one; ``b""`` at the end of the response.

        Raises:
            UpstreamError: the connection failed before the end; bytes that came before were returned first.
        """
        while True:
            if self._chunks:
                return self._take()
            if self.complete:
                return b""
            await self._wait()

    async def stream_to(self, sink: Sink) -> None:
        """Stream the body to ``sink`` as it comes, without waking a task for each piece of it.

        Returns when the response is complete, its last bytes being left for ``read``; or when ``sink`` has returned
        False: it takes no more for now (backpressure).

        Raises:
            UpstreamError: the connection failed.
            Exception: what ``sink`` raised, for which the connection was dropped.
        """
        self._sink = sink
        try:
            while not self.complete and self._streams():
                if self._chunks:
                    self._give(sink, self._take())
                else:
                    await self._wait()
        finally:
            self._sink = None

    def acknowledge_less(self) -> None:
        """Have one packet acknowledge two tokens: otherwise each takes one of its own.

        Only where the engine sends each at once (TCP_NODELAY): another would keep the second one back until the first
        is acknowledged. The kernel does so until it has waited 40 ms for more: it has to be asked for each stream.
        """
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        if sock is not None:
            with contextlib.suppress(OSError):  # it broke already, which the protocol is notified of
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)

    @property
    def at_end(self) -> bool:
        """The response is complete and every byte of it has been read."""
        return self.complete and not self._chunks

    @property
    def reusable(self) -> bool:
        return self.complete and self._keep_alive and not self.closed and not self._paused

    def finish(self) -> None:
        """End a completed exchange; the connection is idle from here on."""
        self._busy = False
        self._chunks = []
        self._buffered = 0

    def abort(self, error: Exception) -> None:
        """Drop the connection at once, so that the engine stops working on the request."""
        self._fail(error)
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def forget(self) -> None:
        """Release the error it failed with: its traceback keeps frames alive, and the request in them."""
        self._error = None

    # called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes, only equal to them
        self._transport = cast(asyncio.Transport, transport)

    def eof_received(self) -> None:
        """Do nothing: the transport closes itself."""

    def pause_writing(self) -> None:
        """Do nothing: one request at a time is written, and its response is what the router waits for."""

    def resume_writing(self) -> None:
        """Do nothing, see above."""

    def data_received(self, data: bytes) -> None:
        if not self._busy or self.complete or self._parser is None:
            # Unexpected bytes must not be taken for the next response.
            self.abort(BadResponse("bytes came after the end of the response"))
            return
        sink = self._sink
        if sink is not None and self._between_chunks and not self._chunks:
            body = whole_chunk(data)
            if body:  # nearly always in a stream of events: the parser would come to the same, and to where it is
                if self._timer is not None:
                    self._read_at = self._loop.time()
                self._overhead = 0
                self._give(sink, body)
                if not self._streams():
                    self._wake()
                return
        self._received = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.abort(BadResponse(f"the response is not HTTP/1.1: {error.__context__ or error}"))
            return
        if self._between_chunks and not data.endswith(b"\r\n"):
            self._between_chunks = False  # the next one has begun
        if self._chunks or self.complete:
            self._overhead = 0
            if sink is not None and not self.complete:
                self._give(sink, self._take())
                if self._streams():
                    return
        else:
            self._count_overhead(len(data))
        waiter = self._waiter
        if waiter is not None:  # what `_wake` does; one more call per read is measurable
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._parser = None  # it holds bound methods of this object: break the cycle
        self._cancel_timer()
        if self._busy and not self.complete:
            framed = any(name in _FRAMING for name, _ in self.headers)
            if self._head_complete and not framed and exc is None and self._error is None:
                # no length was given: the response lasts until the connection closes
                self._end()
            elif self._exchanges > 1 and not self._received:
                self._fail(StaleConnection("the connection was closed while it was idle"))
            else:
                self._fail(ConnectionLost(f"connection lost: {exc or 'closed by the other side'}"))
        self._wake()

    # called by the parser

    def on_message_begin(self) -> None:
        if self.complete:
            raise BadResponse("a second response to one request")  # makes feed_data fail, and so ends the connection
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_complete:
            return  # a trailer
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        if status < 200:
            if not 100 <= status != 101:
                raise BadResponse(f"status {status}")
            self.headers = []
            return
        if status > 599:
            raise BadResponse(f"status {status}")
        if status == 204 or status == 304:  # no body follows, whatever length or framing they announce
            self.headers = [header for header in self.headers if header[0] not in _FRAMING]
        self.status = status
        self._head_complete = True

    def on_chunk_header(self) -> None:
        self._between_chunks = False

    def on_chunk_complete(self) -> None:
        self._between_chunks = True

    def on_body(self, body: bytes) -> None:
        if self._timer is not None:
            self._read_at = self._loop.time()
        self._chunks.append(body)
        self._buffered += len(body)
        if self._buffered > HIGH_WATER and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._head_complete and self._parser is not None:
            self._keep_alive = self._parser.should_keep_alive()
            self._end()

    # internal

    def _set_user_timeout(self, seconds: int) -> None:
        self._extended_timeout = seconds > DEAD_AFTER
        assert self._transport is not None
        with contextlib.suppress(OSError):  # it broke already, which the protocol is notified of
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, seconds * 1000)

    def _count_overhead(self, size: int) -> None:
        self._overhead += size
        if self._overhead > MAX_OVERHEAD:
            self.abort(BadResponse(f"more than {MAX_OVERHEAD} bytes without a body or an end"))
        elif self._in_head and self._head_timer is None:
            error = BadResponse(f"the head of the response did not end within {HEAD_SECONDS:g} s")
            self._head_timer = self._loop.call_later(HEAD_SECONDS, self.abort, error)

    def _take(self) -> bytes:
        chunks, self._chunks = self._chunks, []
        self._buffered = 0
        if self._paused:
            self._paused = False
            if self._transport is not None and not self.closed:
                self._transport.resume_reading()
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _streams(self) -> bool:
        """The sink takes more. Asked by a call: a compiled function that has seen one assumes that it stays."""
        return self._sink is not None

    def _give(self, sink: Sink, part: bytes) -> None:
        try:
            if not sink.put(part):
                self._sink = None
        except Exception as error:
            self.abort(error)

    def _check_at(self, when: float) -> None:
        """Have the time-outs checked then, or before."""
        if self._timer is not None:
            if self._fires_at <= when:
                return
            self._timer.cancel()
        self._fires_at = when
        self._timer = self._loop.call_at(when, self._check_timeouts)

    def _check_timeouts(self) -> None:
        """Abort a response that does not begin, or has stalled. While the client is slow nothing is expected."""
        self._timer = None
        if not self._busy or self.complete or self.closed:
            return
        now = self._loop.time()
        if not self._read_at:
            limit, since = self._first_byte_timeout, self._sent_at
        else:
            limit, since = self._stall_timeout, now if self._paused else self._read_at
        if not limit:
            self._check_at(now + self._first_byte_timeout + self._stall_timeout)  # one of them is 0
        elif now < since + limit:
            self._check_at(since + limit)
        elif self._read_at:
            self.abort(Stalled(f"nothing came for {limit:g} s"))
        else:
            self.abort(FirstByteTimeout(f"no response within {limit:g} s"))

    def _end(self) -> None:
        self.complete = True

    def _fail(self, error: Exception) -> None:
        if self._error is None and not self.complete:
            self._error = error
        self._cancel_timer()
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        self._wake()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> asyncio.Future[None]:
        """A future that completes at the next event.

        Raises:
            Exception: what the exchange failed with.
        """
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        return self._waiter

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
