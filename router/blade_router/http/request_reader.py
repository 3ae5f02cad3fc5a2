"""Reading requests: llhttp's events on one side, whole requests or refusals on the other, limits in between."""

import asyncio
import enum
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import httptools

from blade_protocol.body_framing import BodyFraming
from blade_protocol.limits import BODY_BUDGET_BYTES
from blade_protocol.paths import origin_form
from blade_router.http import head
from blade_router.http.body_budget import LARGE_BODY, BodyBudget, BodyCharge
from blade_router.http.errors import Headers, Refused, header_of
from blade_router.http.head import RawRequest

MAX_PIPELINED = 64
"""Pipelined requests that may wait for their turn; beyond them nothing is read, and the connection closes."""
LARGE_HEAD = 16 * 1024
"""Bytes above which an incomplete head counts in the budget of bodies."""
FAIR_RATE = 64 * 1024
"""Bytes per second with which a body is not in the way of others."""
LAG_SECONDS = 1.0
"""Seconds that a body may be behind that rate."""
MAX_FRAMING = 256 * 1024
"""Bytes that chunk extensions and trailers may take, besides eight for each byte of the body."""


@dataclass(frozen=True, kw_only=True)
class HttpLimits:
    """Limits of one client; times in seconds."""

    max_body_bytes: int = 16 << 20
    budget: BodyBudget = field(default_factory=lambda: BodyBudget(BODY_BUDGET_BYTES))
    """Of the bodies of all connections together."""
    relieve: Callable[[], bool] = lambda: False
    """Closes a connection whose body is stalled, when the budget is used up; False: there is none."""
    header_timeout: float = 10.0
    """From the first byte of a head to its end."""
    body_timeout: float = 30.0
    """Without a byte of an incomplete body."""
    body_deadline: float = math.inf
    """From the head of a request to the end of its body."""
    min_body_rate: float = 0.0
    """Bytes per second that a body has to come with on average, once ``body_timeout`` has passed; 0 for no minimum."""
    keep_alive: float = 75.0
    """Between two requests."""
    check_head: Callable[[RawRequest], str] = lambda request: ""
    """Raises ``Refused`` for a client that may not send a large body; returns the name of its API key, empty without
    one. Called before the body is read."""


class Stage(enum.Enum):
    """The part of a request that the next byte belongs to."""

    IDLE = "between requests"
    HEAD = "head"
    BODY = "body"
    OVER = "nothing: what still comes is dropped"


IDLE, HEAD, BODY, OVER = Stage  # an enum's attributes cost several times a global's


class RequestReader:
    """The reading half of a connection.

    Args:
        wake: called when there is something in ``waiting``.
        send_continue: called when a client waits for ``100 Continue``.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: HttpLimits,
        wake: Callable[[], None],
        send_continue: Callable[[], None],
    ) -> None:
        self.waiting: deque[RawRequest | Refused] = deque()
        """Requests to be served, in this order; a refusal is the last."""
        self.stage = IDLE
        self.deadline = loop.time() + limits.keep_alive
        """When the client is too slow, as long as no request is being served."""
        self.request: RawRequest | None = None
        """The request whose body is being read."""
        self._time = loop.time
        self._limits = limits
        self._wake = wake
        self._send_continue = send_continue
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._refusal: Refused | None = None
        """The error a callback found: llhttp hides an exception in one of its own."""
        self.refused_origin = b""
        """The ``Origin`` of the request that was refused, as far as its head had come."""
        self._target = b""
        self._headers: Headers = []
        self._framing: BodyFraming | None = None
        """Reads the body of a request that offers an upgrade."""
        self._body: bytes | bytearray = b""
        self._charged = 0
        """Bytes of the head or body being read that count in the budget; none of what comes in one piece."""
        self._charged_key = ""
        """The API key in whose share they count."""
        self._body_began = math.inf
        """When its body was first waited for."""
        self._read_at = 0.0
        """When the last byte of an incomplete body came."""
        self._bytes = 0
        """Bytes of its head, or of its body with the framing, before the current piece."""
        self._piece = 0

    def feed(self, data: bytes) -> None:
        """Parse received bytes."""
        self._piece = len(data)
        while data and self._parser is not None:
            if self._framing is not None:
                data = self._read_framed(self._framing, data)
                continue
            try:
                self._parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                self._ignore_upgrade()
            except httptools.HttpParserError as error:
                self.refuse(self._refusal or head.bad_request(f"this is no valid HTTP request: {error}"))
        if self.stage is not IDLE:
            self._check_limits()

    def refuse(self, refusal: Refused) -> None:
        """Queue an error response, and read nothing any more."""
        last = self.waiting[-1] if self.waiting else None
        if self.stage is not IDLE:
            self.refused_origin = header_of(self._headers, b"origin")
            path = (origin_form(self._target) or b"").partition(b"?")[0]
            refusal.path = b"/" + path.strip(b"/")
        self.stop()
        self._refusal = None
        refusal.__traceback__ = None  # its frames refer to this reader: a cycle
        if isinstance(last, RawRequest) and not last.keep_alive:
            return  # the client had asked to close: what follows is no request
        self.waiting.append(refusal)
        self._wake()

    def stop(self) -> None:
        """Read nothing any more."""
        self.stage = OVER
        self.deadline = math.inf
        self._parser = self._framing = None  # they hold bound methods of this object: break the cycle
        self._release()
        self.request = None
        self._body = b""

    def drop_waiting(self) -> None:
        """Forget the requests that wait to be served."""
        for request in self.waiting:
            if isinstance(request, RawRequest) and request.charge is not None:
                request.charge.release()
        self.waiting.clear()

    def detach(self) -> None:
        """Stop, and drop the callbacks: no reference cycle is left for the collector."""
        self.stop()
        self.drop_waiting()
        self._wake = self._send_continue = _noop

    def restart_deadline(self) -> None:
        """Restart the client's deadline: no request is being served from now on."""
        limits, now = self._limits, self._time()
        seconds = limits.keep_alive
        if self.stage is not IDLE:
            seconds = limits.header_timeout if self.stage is HEAD else limits.body_timeout
            self._body_began = now
            if self.request is not None and self.request.expects_continue:
                self._send_continue()
        self.deadline = now + seconds

    @property
    def waited_since(self) -> float:
        """Since when it waits for a request, for the rest of a head (its first byte) or of a body.

        That is the last byte of a body which comes at a fair rate, the beginning of one that comes in drops.
        """
        limits = self._limits
        if self.stage is BODY:
            lag = self._time() - self._body_began - len(self._body) / FAIR_RATE
            return self._body_began if lag > LAG_SECONDS else self._read_at
        return self.deadline - (limits.header_timeout if self.stage is HEAD else limits.keep_alive)

    @property
    def charged(self) -> int:
        """Bytes of the incomplete request that count in the budget."""
        return self._charged

    def time_out(self) -> bool:
        """Refuse a request whose deadline has passed. False: none was being read."""
        limits = self._limits
        if self.stage is HEAD:
            what = f"the head was not complete within {limits.header_timeout:g} s"
        elif self.stage is BODY:
            what = f"no byte of the body came for {limits.body_timeout:g} s"
            if self._time() - self._read_at < limits.body_timeout:
                what = f"the body was slower than {limits.min_body_rate:g} bytes/s, or took {limits.body_deadline:g} s"
        else:
            return False
        self.refuse(Refused(408, f"{what}; send the request in one go", code="request_timeout"))
        return True

    # called by the parser

    def on_message_begin(self) -> None:
        if len(self.waiting) >= MAX_PIPELINED:
            raise self._reject(head.bad_request(f"more than {MAX_PIPELINED} requests are waiting on this connection"))
        self.stage = HEAD
        self.deadline = self._time() + self._limits.header_timeout
        self._target = b""
        self._headers = []
        self._bytes = 0

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.stage is HEAD:  # otherwise it is a trailer
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self.stage is not HEAD or self._parser is None:
            return
        if self._charged:
            self._release()  # the head's
        parser, headers = self._parser, self._headers
        limit = self._limits.max_body_bytes
        try:
            if len(headers) > head.MAX_HEADERS:
                raise head.bad_request(f"the request has more than {head.MAX_HEADERS} headers")
            if self._bytes + self._piece > head.MAX_HEAD_BYTES and self._head_size() > head.MAX_HEAD_BYTES:
                raise head.head_too_large()
            request = head.read_head(
                parser.get_method(), self._target, parser.get_http_version(), parser.should_keep_alive(), headers
            )
            length = request.length or 0
            if length > limit:
                raise head.body_too_large(limit)
            if length > LARGE_BODY or request.chunked:
                request.key = self._limits.check_head(request)
            if length and not self._has_room(length, length, request.key):
                raise head.too_many_bodies()
        except Refused as refusal:
            raise self._reject(refusal) from None
        self._read_body(request)
        if request.expects_continue:
            self._send_continue()

    def on_body(self, body: bytes) -> None:
        if not self._body:
            self._body = body
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)  # many small objects would take far more than their size
            self._body += body
        if len(self._body) > self._limits.max_body_bytes:
            raise self._reject(head.body_too_large(self._limits.max_body_bytes))

    def on_message_complete(self) -> None:
        request = self.request
        if request is None:
            return
        if self._body:
            size = len(self._body)
            if not self._has_room(size - self._charged, size, request.key):
                raise self._reject(head.too_many_bodies())
            if self.stage is OVER:
                return  # to make room, this one was given up
            self._release()
            request.charge = BodyCharge(self._limits.budget, size, request.key)
            request.body_bytes = size
            request.body = self._body if isinstance(self._body, bytes) else bytes(self._body)
            self._body = b""
        self.request = None
        self.stage = IDLE
        self.deadline = math.inf
        self.waiting.append(request)
        self._wake()

    # internal

    def _reject(self, refusal: Refused) -> Refused:
        self._refusal = refusal
        return refusal

    def _read_body(self, request: RawRequest) -> None:
        self.stage = BODY
        self.request = request
        self._body = b""
        self._bytes = 0
        self._body_began = math.inf

    def _check_limits(self) -> None:
        """Check the limits of a request that is still being read."""
        self._bytes += self._piece
        if self.stage is HEAD:
            if self._bytes > head.MAX_HEAD_BYTES + self._piece:
                self.refuse(head.head_too_large())
            elif self._bytes > LARGE_HEAD:
                self._charge(self._bytes, self._bytes)
        elif self.stage is BODY:
            size = len(self._body)
            self._set_body_deadline(size)
            if self._bytes > MAX_FRAMING + self._piece + 8 * size:
                self.refuse(head.bad_request("the framing of the body is larger than the body"))
            elif size > self._charged:
                announced = self.request.length if self.request is not None else None
                self._charge(size, announced or size)

    def _set_body_deadline(self, size: int) -> None:
        """Set the deadline for the next byte of a body of which so many have come."""
        limits, now = self._limits, self._time()
        self._read_at = now
        self._body_began = min(self._body_began, now)
        seconds = limits.body_deadline
        if limits.min_body_rate:
            seconds = min(seconds, limits.body_timeout + size / limits.min_body_rate)
        self.deadline = min(now + limits.body_timeout, self._body_began + seconds)

    def _charge(self, size: int, whole: int) -> None:
        """Count what has come of a head or body in the budget; ``whole`` is its size as far as that is known."""
        key = self.request.key if self.request is not None else ""
        if not self._has_room(size - self._charged, whole, key):
            self.refuse(head.too_many_bodies())
        elif self.stage is not OVER:  # else this one was given up to make room
            self._limits.budget.take(size - self._charged, key)
            self._charged, self._charged_key = size, key

    def _has_room(self, more: int, size: int, key: str) -> bool:
        """Whether the budget has room for ``more`` bytes of a body of ``size``, if need be instead of a stalled one."""
        budget = self._limits.budget
        if key and not budget.allows(more, self._charged, key):
            return False
        while not budget.fits(more, size):
            if not self._limits.relieve():
                return False
        return True

    def _release(self) -> None:
        if self._charged:
            self._limits.budget.take(-self._charged, self._charged_key)
            self._charged = 0

    def _head_size(self) -> int:
        return len(self._target) + sum(len(name) + len(value) + 4 for name, value in self._headers)

    def _ignore_upgrade(self) -> None:
        """Refuse an offered protocol upgrade and stay with HTTP/1.1: the body follows, and then the next request.

        llhttp, which takes what follows for the other protocol, has reported the request as complete.
        """
        self._parser = httptools.HttpRequestParser(self)
        request = self.waiting[-1]
        assert isinstance(request, RawRequest)
        if request.chunked or request.length:
            self.waiting.pop()
            self._framing = BodyFraming(None if request.chunked else request.length, self.on_body)
            self._read_body(request)

    def _read_framed(self, framing: BodyFraming, data: bytes) -> bytes:
        """Read a body without llhttp; returns what is behind it."""
        try:
            rest = framing.feed(data)
            if rest is None:
                return b""
            self._framing = None
            self.on_message_complete()
        except ValueError as error:
            self.refuse(head.bad_request(f"this is no valid HTTP request: {error}"))
        except Refused as refusal:
            self.refuse(refusal)
        else:
            return rest
        return b""


def _noop() -> None:
    pass
