"""The client's side of one request: writes the response, and notices at once when the client disconnects.

An engine that goes on generating for a client that left wastes its time, so the connection to the engine is aborted
the moment the client's goes, whether the response streams or not.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Final, Protocol

from blade_protocol.anthropic import REQUEST_ID, speaks_anthropic
from blade_protocol.paths import MESSAGES
from blade_router.http import response_head
from blade_router.http.errors import ClientGone, Headers, Refused, header_of

_MESSAGES: Final = MESSAGES.encode()
_REQUEST_ID: Final = REQUEST_ID.encode()
COPY_LIMIT: Final = 64 * 1024
"""Bytes up to which copying a body costs less than sending it in parts."""
COMMENT: Final = b"keep-alive"
"""Sent in a stream that has been silent for long: clients and proxies between drop a connection that is."""
HEARTBEAT_HEADERS: Headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]


class Abortable(Protocol):
    """Work done for a client: a connection to an engine, a place in a queue."""

    def abort(self, error: Exception) -> None: ...


class Events(Protocol):
    """The events of a stream that is sent."""

    @property
    def split(self) -> bool:
        """What was sent ends within an event."""


class _Done:
    """An awaitable that is already done, and costs little."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


_DONE: Final = _Done()


class FlowControl:
    """Write flow control of a client's connection, which outlives its requests."""

    __slots__ = ("_resumed", "address", "last_response", "lost", "paused", "pauses", "transport")

    def __init__(self, transport: asyncio.Transport, address: str = "") -> None:
        self.transport = transport
        self.address = address
        """The other side's, also when it has left; empty where it has none."""
        self.paused = False
        """The client reads more slowly than we write (backpressure)."""
        self.pauses = 0
        """How often that has been so."""
        self.lost = False
        self.last_response = False
        """The process is about to end: each response is the connection's last one."""
        self._resumed: asyncio.Future[None] | None = None

    def pause(self) -> None:
        self.paused = True
        self.pauses += 1

    def resume(self) -> None:
        """Writing can go on, or never will again: then waiters find the client gone."""
        self.paused = False
        if self._resumed is not None and not self._resumed.done():
            self._resumed.set_result(None)

    async def drain(self) -> None:
        """Wait until the client has read enough.

        Raises:
            ClientGone: it left instead.
        """
        while self.paused and not self.lost:
            if self._resumed is None or self._resumed.done():
                self._resumed = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._resumed)
        if self.lost:
            raise ClientGone


class Client:
    """The client of one request. Methods that write return an awaitable, which waits while the client is slow.

    Args:
        http11: otherwise responses of unknown length end with the connection.
        keep_alive: the client would like to send another request after this one.
        bodiless: a HEAD request, which gets everything but the body.
        extra: headers for every response (CORS).
        path: the request's, which decides the shape of errors.
    """

    __slots__ = (
        "_anthropic",
        "_bodiless",
        "_chunked",
        "_error_event",
        "_events",
        "_extra",
        "_flow",
        "_head",
        "_heartbeating",
        "_http11",
        "_pauses",
        "_quiet_bytes",
        "_quiet_since",
        "_refusal",
        "_stream_headers",
        "_work",
        "began",
        "complete",
        "gone",
        "keep_alive",
        "request_id",
        "sent",
        "status",
    )

    def __init__(
        self,
        flow: FlowControl,
        *,
        http11: bool = True,
        keep_alive: bool = True,
        bodiless: bool = False,
        extra: Headers | None = None,
        path: bytes = b"",
    ) -> None:
        self.keep_alive = keep_alive
        self.status = 0
        """The status of the response that has begun; 0 before."""
        self.began = 0.0
        """When the response began (``time.perf_counter``); 0 before."""
        self.sent = 0
        """Bytes of body."""
        self.complete = False
        self.gone = flow.lost
        self._flow = flow
        self._pauses = flow.pauses
        self._http11 = http11
        self._bodiless = bodiless
        self._extra = extra
        self._anthropic = path.startswith(_MESSAGES) and speaks_anthropic(path.decode("latin-1"))
        self.request_id = b""
        """Where it is known: part of an error in Anthropic's shape."""
        self._chunked = False
        self._head = b""
        self._heartbeating = False
        self._refusal: list[bytes] | None = None
        self._work: Abortable | None = None
        self._stream_headers: Headers | None = None
        """Its response is to be a stream: comments may begin it, with these headers. None: none may be sent."""
        self._error_event: Callable[[bytes], bytes] = _plain_event
        self._events: Events | None = None
        self._quiet_bytes = -1
        self._quiet_since = 0.0
        """When ``sent`` became that."""

    def attach(self, work: Abortable) -> None:
        """Abort this with ``ClientGone`` when the client goes.

        Raises:
            ClientGone: it has gone already.
        """
        if self.gone:
            raise ClientGone
        self._work = work

    def detach(self) -> None:
        """Stop aborting what was attached: it has another owner from now on."""
        self._work = None

    def lost(self) -> None:
        """Abort the attached work: the connection is gone."""
        self.gone = True
        if self._work is not None:
            self._work.abort(ClientGone())

    def drop(self) -> None:
        """Close its connection at once, with what it has not read yet."""
        self._flow.transport.abort()

    def expect_stream(self, headers: Headers, error_event: Callable[[bytes], bytes]) -> None:
        """Its response is to be a stream, which comments keep alive while there is nothing else to send.

        Args:
            headers: go with the first comment, where one begins the response.
            error_event: makes the event of an error's JSON.
        """
        self._stream_headers = headers
        self._error_event = error_event

    def stream_begins(self, events: Events | None) -> None:
        """The response is a stream of these events; None: it is something else, and has no place for comments."""
        self._events = events
        if events is None:
            self._stream_headers = None

    def comment(self, now: float, interval: float) -> None:
        """Send a comment if a stream has been silent for that many seconds. Called every now and then, so that a stream
        needs no timer, and what is sent no clock."""
        if self._stream_headers is None:
            return
        if self.sent != self._quiet_bytes:
            self._quiet_bytes, self._quiet_since = self.sent, now
        elif now - self._quiet_since >= interval:
            silenced = self.complete or self.gone or self._flow.paused or self._refusal is not None
            if silenced or (self._events is not None and self._events.split):
                return
            if self.began:
                self.put(b": %b\n\n" % COMMENT)
            else:
                self.heartbeat(COMMENT)

    @property
    def slow(self) -> bool:
        """It has kept its response waiting: how long that took is its own doing."""
        return self._flow.pauses != self._pauses

    @property
    def address(self) -> str:
        """Address of the other side, also when it has left; empty where it has none."""
        return self._flow.address

    @property
    def peer(self) -> tuple[str, int] | None:
        """Address and port of the other side; None where it has none."""
        found = self._flow.transport.get_extra_info("peername")
        return (found[0], found[1]) if isinstance(found, tuple) else None

    @property
    def ends_with_connection(self) -> bool:
        """The response has begun, and only the end of the connection marks its end."""
        return bool(self.status) and not self._chunked and not self.keep_alive

    # The methods below return at once; where they have to wait, the awaitable they return does.

    def start(self, status: int, headers: Headers) -> Awaitable[None]:
        """Begin the response. Without a Content-Length its body is chunked, or ends with the connection.

        Raises:
            ClientGone: the client has disconnected.
        """
        self.began = time.perf_counter()
        if self._heartbeating:
            self.status = status
            if status != 200 or not _is_stream(headers):  # the head said so already: it has to fit into an event
                self._refusal = []
            return _DONE
        if self.gone:
            raise ClientGone
        self._begin(status, headers)
        return _DONE

    def write(self, body: bytes) -> Awaitable[None]:
        """Write a part of the body.

        Raises:
            ClientGone: the client has disconnected.
        """
        return _DONE if self.put(body) else self._flow.drain()

    def put(self, body: bytes) -> bool:
        """Write without waiting: False when ``drained`` is to be awaited before more is written.

        Raises:
            ClientGone: the client has disconnected.
        """
        if self.gone:
            raise ClientGone
        if self._refusal is not None:
            self._refusal.append(body)
            return True
        if body:
            self._send(body)
        return not self._flow.paused

    @property
    def ready(self) -> bool:
        """More may be written at once: the client reads, and has not left."""
        return not self._flow.paused

    def drained(self) -> Awaitable[None]:
        """Wait until the client has read enough.

        Raises:
            ClientGone: it left instead.
        """
        return self._flow.drain() if self._flow.paused else _DONE

    def finish(self, body: bytes = b"") -> Awaitable[None]:
        """Write the rest of the body.

        Raises:
            ClientGone: the client has disconnected.
        """
        if self.gone:
            raise ClientGone
        if self._refusal is not None:
            # JSON has line ends between its parts only, and an event none at all
            body = b" ".join(b"".join((*self._refusal, body)).splitlines())
            body = self._error_event(body) if self.status != 200 else _plain_event(body)
        self.complete = True
        if self._chunked:
            transport = self._flow.transport
            self.sent += len(body)
            if body:
                _write(transport, self._head, response_head.chunk_size(len(body)), body, b"\r\n0\r\n\r\n")
            else:
                transport.write(self._head + response_head.LAST_CHUNK)
            self._head = b""
        else:
            self._send(body)
        return self.drained()

    def refuse(self, refusal: Refused) -> Awaitable[None]:
        """Respond with an error.

        Raises:
            ClientGone: the client has disconnected.
        """
        headers = refusal.headers
        if self._anthropic:
            body = refusal.message_body(self.request_id.decode("latin-1") or None)
            if self.request_id and not header_of(headers, _REQUEST_ID):
                headers.append((_REQUEST_ID, self.request_id))
        else:
            body = refusal.body
        headers.append((b"content-length", b"%d" % len(body)))
        self.start(refusal.status, headers)
        return self.finish(body)

    def heartbeat(self, comment: bytes, headers: Headers | None = None) -> Awaitable[None]:
        """Send a keep-alive comment to a client that waits for a stream; the stream begins with it.

        From then on the response is a 200, and ``start`` writes no head: one with another status makes the body an
        event. ``headers`` go with the first comment only.

        Raises:
            ClientGone: the client has disconnected.
        """
        if not self._heartbeating:
            self._begin(200, HEARTBEAT_HEADERS + (headers or self._stream_headers or []))
            self._heartbeating = True
        return self.write(b": %b\n\n" % comment)

    def _begin(self, status: int, headers: Headers) -> None:
        self.status = status
        flow = self._flow
        if self._extra:
            headers = headers + self._extra
        if flow.last_response:
            self.keep_alive = False
        framing = b"\r\n"
        measured = dated = False
        for name, _ in headers:
            if name == b"content-length":
                measured = True
            elif name == b"date":
                dated = True
        if status in response_head.BODILESS:
            self._bodiless = True
        elif not measured:
            framing = self._unknown_length_framing()
        if not dated:
            framing = response_head.date_line() + framing
        if not self.keep_alive:
            framing = b"connection: close\r\n" + framing
        elif not self._http11:
            framing = b"connection: keep-alive\r\n" + framing
        self._head = b"%b%b%b" % (response_head.status_line(status), response_head.lines(headers), framing)

    def _unknown_length_framing(self) -> bytes:
        """The framing header of a body of unknown length."""
        if not self._http11:
            self.keep_alive = False
            return b"\r\n"
        self._chunked = not self._bodiless
        return b"transfer-encoding: chunked\r\n\r\n"

    def _send(self, body: bytes) -> None:
        transport = self._flow.transport
        head, self._head = self._head, b""
        if self._bodiless:
            if head:
                transport.write(head)
            return
        self.sent += len(body)
        if self._chunked:
            _write(transport, head, response_head.chunk_size(len(body)), body, b"\r\n")
        elif head:
            _write(transport, head, b"", body, b"")
        else:
            transport.write(body)


def _plain_event(data: bytes) -> bytes:
    return b"data: %b\n\n" % data


def _is_stream(headers: Headers) -> bool:
    return header_of(headers, b"content-type").lower().startswith(b"text/event-stream")


def _write(transport: asyncio.Transport, head: bytes, size: bytes, body: bytes, after: bytes) -> None:
    """Write all parts at once: uvloop sends what it is given immediately, and has a fast path for one object."""
    if len(body) < COPY_LIMIT:
        transport.write(b"%b%b%b%b" % (head, size, body, after))
    else:
        transport.writelines((head, size, body, after))
