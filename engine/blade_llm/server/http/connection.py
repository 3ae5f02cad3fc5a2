"""uvicorn's HTTP/1.1 connection, with bounds on what its client can make it hold or wait for.

uvicorn takes heads of any size, waits for ever for the rest of a request, and for a client that does not read. Here a
head is bounded in bytes and seconds, a body in seconds and, with all others that are incomplete, in bytes; a client
that takes nothing of its response is dropped; and connections are bounded in number, so that probes always get through.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import socket
from collections.abc import Callable
from email.utils import formatdate
from typing import Any, Final

import httptools
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from blade_llm.api.common.errors import ApiError
from blade_llm.server.http.access import OPEN_PATHS
from blade_llm.server.http.limits import (
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_PIPELINED,
    RESERVED_CONNECTIONS,
    HttpLimits,
)
from blade_protocol.body_framing import BodyFraming
from blade_protocol.paths import origin_form

_LINGER_SECONDS: Final = 5.0
"""For the client to take the response to a request that was refused."""


class Connections:
    """What the connections of one port share."""

    def __init__(self, limits: HttpLimits) -> None:
        self.limits = limits
        self.idle: dict[BoundedConnection, None] = {}
        """Connections without a request whose head is complete, the longest idle first."""
        self.incomplete_bytes = 0
        """Size of all incomplete bodies."""


class BoundedConnection(HttpToolsProtocol):
    """One client's connection, within the limits of ``shared``."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        shared: Connections,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._shared = shared
        self._limits = shared.limits
        self._in_head = False
        self._num_headers = 0
        self._head_bytes = 0
        self._overhead = 0
        """Bytes since the last one of a body, or since a message was complete."""
        self._in_body = False
        self._body_bytes = 0
        """Of the present body; counted in ``shared`` until it is complete."""
        self._offered: BodyFraming | None = None
        """Of the body behind a head that offers an upgrade, until llhttp has stopped there."""
        self._framing: BodyFraming | None = None
        """Reads that body."""
        self._fault: ApiError | None = None
        self._running: RequestResponseCycle | None = None
        """The request that is responded to; ``cycle`` is the one received last."""
        self._receive_timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None

    # called by the event loop

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        _bound_silence(transport, self._limits.stall_seconds)
        idle, excess = self._shared.idle, len(self.connections) - self._limits.max_connections
        if excess > 0 and idle:
            next(iter(idle)).close_idle()
        elif excess > RESERVED_CONNECTIONS:
            transport.abort()
            return
        idle[self] = None
        self._receive_timer = self.loop.call_later(self._limits.head_seconds, self._head_overdue)

    def connection_lost(self, exc: Exception | None) -> None:
        self._shared.idle.pop(self, None)
        self._complete_body()
        self._framing = self._offered = None  # they refer to this object
        self._stop_receive_timer()
        self._stop_send_timer()
        self._unset_keepalive_if_required()
        for cycle in (self._running, *(cycle for cycle, _ in self.pipeline)):  # uvicorn would tell the last one alone
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self._running = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._overhead += len(data)
        try:
            self._parse(data)
        except (httptools.HttpParserError, ApiError, ValueError):
            self._fault = self._fault or ApiError(400, "this is no valid HTTP/1.1 request")
        if self._overhead > MAX_HEAD_BYTES:
            self._fault = self._fault or _head_too_large()
        if self._fault is not None:
            self._refuse(self._fault)
        elif (self._in_head or self._in_body) and self._receive_timer is None:
            self._expect_more()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._send_timer is None:
            self._send_timer = self.loop.call_later(self._limits.stall_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_send_timer()

    # called by the parser

    def on_message_begin(self) -> None:
        self._unset_keepalive_if_required()
        self._in_head = True
        self._num_headers = self._head_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer: nothing here reads any
        self._num_headers += 1
        self._count_head(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._unset_keepalive_if_required()  # a response that ended within the head has armed it
        self._in_head = False
        target = origin_form(self.url)
        if target is None:
            self._fail(ApiError(400, "the request target must be a path, or an http URL"))
        else:
            self.url = target
        self._in_body = True
        self._stop_receive_timer()
        self._shared.idle.pop(self, None)
        if len(self.pipeline) >= MAX_PIPELINED:
            self._fail(ApiError(400, f"more than {MAX_PIPELINED} requests wait on this connection"))
        app = self.app
        if len(self.connections) > self._limits.max_connections:
            self.app = _only_probes(app)
        try:
            super().on_headers_complete()
        finally:
            self.app = app
        if self.parser.should_upgrade():
            self._offered = self._framing_of_body()

    def on_body(self, body: bytes) -> None:
        self._overhead = 0
        self._body_bytes += len(body)
        self._shared.incomplete_bytes += len(body)
        if self._shared.incomplete_bytes > self._limits.max_incomplete_bytes:
            message = "too many large requests are being received; try again"
            error = ApiError(503, message, kind="overloaded_error", code="busy", headers={"retry-after": "1"})
            self._fail(error)
        if self.cycle.response_complete and self._body_bytes > 2 * self._limits.max_body_bytes:
            self._fail(ApiError(413, "the body goes on after its request was refused"))
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._offered is not None:
            return  # llhttp takes the body for the other protocol
        self._overhead = 0
        self._complete_body()
        self._stop_receive_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and self.cycle.response_complete:
            self._shared.idle[self] = None

    # internal

    def _parse(self, data: bytes) -> None:
        """Read what was received. There is no other protocol here, so an offer of one is ignored."""
        while data:
            if self._framing is not None:
                rest = self._framing.feed(data)
                if rest is None:
                    return
                self._framing, data = None, rest
                self.on_message_complete()
                continue
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self._framing, self._offered = self._offered, None

    def _framing_of_body(self) -> BodyFraming | None:
        """The framing of the body that the headers announce; None without one. llhttp has checked the lengths."""
        codings = [value.strip().lower() for name, value in self.headers if name == b"transfer-encoding"]
        if codings:
            if codings != [b"chunked"] or self.parser.get_http_version() != "1.1":
                self._fail(ApiError(400, "the only supported transfer-encoding is chunked, once, in HTTP/1.1"))
            return BodyFraming(None, self.on_body)
        length = next((int(value) for name, value in self.headers if name == b"content-length"), 0)
        return BodyFraming(length, self.on_body) if length else None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def close_idle(self) -> None:
        """Make room for another connection."""
        self._shared.idle.pop(self, None)
        self.transport.close()

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES or self._num_headers > MAX_HEADERS:
            self._fail(_head_too_large())

    def _fail(self, error: ApiError) -> None:
        """Note why the connection ends and stop the parser."""
        self._fault = error
        raise error

    def _complete_body(self) -> None:
        self._in_body = False
        self._shared.incomplete_bytes -= self._body_bytes
        self._body_bytes = 0

    def _expect_more(self) -> None:
        """Start the deadline of a head, or of a body, that did not come at once."""
        later, limits = self.loop.call_later, self._limits
        if self._in_head:
            self._receive_timer = later(limits.head_seconds, self._head_overdue)
        else:
            self._receive_timer = later(limits.body_seconds, self._body_overdue)

    def _head_overdue(self) -> None:
        self._receive_timer = None
        if self._responding or self.flow.read_paused:  # it came early, and is read when its turn comes
            self._expect_more()
        elif self._in_head:
            self._refuse(ApiError(408, f"the head did not end within {self._limits.head_seconds:g} s"))
        else:
            self.transport.close()  # it never said a word

    def _body_overdue(self) -> None:
        self._receive_timer = None
        if self.pipeline or self.flow.read_paused:
            self._expect_more()
        else:
            self._refuse(ApiError(408, f"the body did not end within {self._limits.body_seconds:g} s"))

    @property
    def _responding(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, error: ApiError) -> None:
        """Respond with ``error``, unless a response has begun, and close."""
        if self.transport.is_closing():
            return
        begun = self._in_body and self.cycle.response_complete
        if self._responding:
            begun = self.cycle.response_started or bool(self.pipeline)
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if not begun:
            self.transport.write(_response(error))
        self._stop_receive_timer()
        self.transport.close()
        self._send_timer = self._send_timer or self.loop.call_later(_LINGER_SECONDS, self.transport.abort)

    def _stop_receive_timer(self) -> None:
        if self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None

    def _stop_send_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None


def bounded_connections(limits: HttpLimits) -> Callable[..., BoundedConnection]:
    """What uvicorn takes for ``http``: makes the connections of one port."""
    shared = Connections(limits)

    def make(
        config: Config, server_state: ServerState, app_state: dict[str, Any], _loop: Any = None
    ) -> BoundedConnection:
        return BoundedConnection(config, server_state, app_state, _loop, shared=shared)

    return make


def _only_probes(app: ASGIApp) -> ASGIApp:
    """``app`` for connections beyond the limit."""

    async def limited(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in OPEN_PATHS:
            await app(scope, receive, send)
            return
        headers = {"retry-after": "1", "connection": "close"}
        error = ApiError(
            503, "too many connections are open; try again", kind="overloaded_error", code="busy", headers=headers
        )
        await error.response()(scope, receive, send)

    return limited


def _head_too_large() -> ApiError:
    return ApiError(431, f"the head exceeds {MAX_HEAD_BYTES} bytes or {MAX_HEADERS} headers; send less")


def _response(error: ApiError) -> bytes:
    """All bytes of a response that ends its connection."""
    body = error.body()
    lines = [
        f"HTTP/1.1 {error.status} {http.HTTPStatus(error.status).phrase}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        f"date: {formatdate(usegmt=True)}",
        "connection: close",
        *(f"{name}: {value}" for name, value in error.headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def _bound_silence(transport: asyncio.Transport, seconds: float) -> None:
    """Have the kernel break the connection to a machine that is gone, or that acknowledges nothing for so long."""
    sock = transport.get_extra_info("socket")
    with contextlib.suppress(OSError):  # it broke already
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(seconds) // 2))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))
