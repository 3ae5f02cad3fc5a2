"""The client's side of one request: writing the answer, and noticing at once when nobody reads it any more.

An engine that goes on generating for a client that left wastes its time, so the connection to the engine is aborted
the moment the client's goes, whether the answer streams or not.
"""

import asyncio
import time
from collections.abc import Awaitable, Generator
from typing import Protocol

from blade_router.errors import ClientGone, Headers, Refused
from blade_router.http import writing

COPIED = 64 * 1024
"""Bytes up to which copying a body costs less than sending it in parts."""
HEARTBEAT_HEADERS: Headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]


class Abortable(Protocol):
    """Work done for a client: a connection to an engine, a place in a queue."""

    def abort(self, error: Exception) -> None: ...


class _Done:
    """Awaiting this costs little and never waits."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


_DONE = _Done()


class Flow:
    """The writing half of a client's connection, which outlives its requests."""

    __slots__ = ("_resumed", "last", "lost", "paused", "transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.paused = False
        """The client reads more slowly than we write."""
        self.lost = False
        self.last = False
        """The process is about to end: each answer is the last one."""
        self._resumed: asyncio.Future[None] | None = None

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        """Writing goes on, or will never again: then what waits finds the client gone."""
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
    """Who asked one request. Methods that write return something to await, which waits while the client is slow.

    Args:
        http11: otherwise answers of unknown length end with the connection.
        keep_alive: the client would like to send another request after this one.
        bodiless: it asked by HEAD, and gets everything but the body.
        extra: headers for every answer (CORS).
    """

    __slots__ = (
        "_bodiless",
        "_chunked",
        "_extra",
        "_flow",
        "_head",
        "_http11",
        "_refusal",
        "_waiting",
        "_work",
        "began",
        "complete",
        "gone",
        "keep_alive",
        "sent",
        "status",
    )

    def __init__(
        self,
        flow: Flow,
        *,
        http11: bool = True,
        keep_alive: bool = True,
        bodiless: bool = False,
        extra: Headers | None = None,
    ) -> None:
        self.keep_alive = keep_alive
        self.status = 0
        """Of the answer that has begun; 0 before."""
        self.began = 0.0
        """When the answer began (``time.perf_counter``); 0 before."""
        self.sent = 0
        """Bytes of body."""
        self.complete = False
        self.gone = flow.lost
        self._flow = flow
        self._http11 = http11
        self._bodiless = bodiless
        self._extra = extra
        self._chunked = False
        self._head = b""
        self._waiting = False
        self._refusal: list[bytes] | None = None
        self._work: Abortable | None = None

    def attach(self, work: Abortable) -> None:
        """Abort this with ``ClientGone`` when the client goes.

        Raises:
            ClientGone: it has gone already.
        """
        if self.gone:
            raise ClientGone
        self._work = work

    def detach(self) -> None:
        """What was attached is another's from now on."""
        self._work = None

    def lost(self) -> None:
        """The connection is gone."""
        self.gone = True
        if self._work is not None:
            self._work.abort(ClientGone())

    @property
    def peer(self) -> tuple[str, int] | None:
        """Address and port of the other side; None where it has none."""
        found = self._flow.transport.get_extra_info("peername")
        return (found[0], found[1]) if isinstance(found, tuple) else None

    @property
    def unended(self) -> bool:
        """The answer has begun, and only the end of the connection can tell that it is over."""
        return bool(self.status) and not self._chunked and not self.keep_alive

    # Those below return at once; where they have to wait, what they return does.

    def start(self, status: int, headers: Headers) -> Awaitable[None]:
        """Begin the answer. Without a Content-Length its body is chunked, or ends with the connection.

        Raises:
            ClientGone: nobody reads it.
        """
        self.began = time.perf_counter()
        if self._waiting:
            self.status = status
            if status != 200:  # the head said 200 already: what went wrong has to fit into an event
                self._refusal = []
            return _DONE
        if self.gone:
            raise ClientGone
        self._begin(status, headers)
        return _DONE

    def write(self, body: bytes) -> Awaitable[None]:
        """A part of the body.

        Raises:
            ClientGone: nobody reads it.
        """
        return _DONE if self.put(body) else self._flow.drain()

    def put(self, body: bytes) -> bool:
        """The same without waiting: False when ``drained`` is to be awaited before more is written.

        Raises:
            ClientGone: nobody reads it.
        """
        if self.gone:
            raise ClientGone
        if self._refusal is not None:
            self._refusal.append(body)
            return True
        if body:
            self._send(body)
        return not self._flow.paused

    def drained(self) -> Awaitable[None]:
        """Wait until the client has read enough.

        Raises:
            ClientGone: it left instead.
        """
        return self._flow.drain() if self._flow.paused else _DONE

    def finish(self, body: bytes = b"") -> Awaitable[None]:
        """The rest of the body.

        Raises:
            ClientGone: nobody reads it.
        """
        if self.gone:
            raise ClientGone
        if self._refusal is not None:
            # JSON has line ends between its parts only, and an event none at all
            body = b"data: %b\n\n" % b" ".join(b"".join((*self._refusal, body)).split(b"\n"))
        self.complete = True
        if self._chunked:
            transport = self._flow.transport
            self.sent += len(body)
            if body:
                _write(transport, b"%b%x\r\n" % (self._head, len(body)), body, b"\r\n0\r\n\r\n")
            else:
                transport.write(self._head + writing.LAST_CHUNK)
            self._head = b""
        else:
            self._send(body)
        return self.drained()

    def refuse(self, refusal: Refused) -> Awaitable[None]:
        """The whole answer is an error.

        Raises:
            ClientGone: nobody reads it.
        """
        body = refusal.body
        self.start(refusal.status, [*refusal.headers, (b"content-length", b"%d" % len(body))])
        return self.finish(body)

    def heartbeat(self, comment: bytes, headers: Headers | None = None) -> Awaitable[None]:
        """Tell a client that waits for a stream that it is not forgotten: a comment, which the stream begins with.

        From then on the answer is a 200, and ``start`` writes no head: one with another status makes the body an
        event. ``headers`` go with the first comment only.

        Raises:
            ClientGone: nobody reads it.
        """
        if not self._waiting:
            self._begin(200, HEARTBEAT_HEADERS + (headers or []))
            self._waiting = True
        return self.write(b": %b\n\n" % comment)

    def _begin(self, status: int, headers: Headers) -> None:
        self.status = status
        flow = self._flow
        if self._extra:
            headers = headers + self._extra
        if flow.last:
            self.keep_alive = False
        framing = b"\r\n"
        if status in writing.BODILESS:
            self._bodiless = True
        else:
            for name, _ in headers:
                if name == b"content-length":
                    break
            else:
                framing = self._unmeasured()
        if not self.keep_alive:
            framing = b"connection: close\r\n" + framing
        elif not self._http11:
            framing = b"connection: keep-alive\r\n" + framing
        self._head = b"%b%b%b" % (writing.status_line(status), writing.lines(headers), framing)

    def _unmeasured(self) -> bytes:
        """How a client is to tell the end of a body whose length nobody knows."""
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
            _write(transport, b"%b%x\r\n" % (head, len(body)), body, b"\r\n")
        elif head:
            _write(transport, head, body, b"")
        else:
            transport.write(body)


def _write(transport: asyncio.Transport, before: bytes, body: bytes, after: bytes) -> None:
    """One write for all: uvloop sends at once what it is given, and one object by the shortest way."""
    if len(body) < COPIED:
        transport.write(b"%b%b%b" % (before, body, after))
    else:
        transport.writelines((before, body, after))
