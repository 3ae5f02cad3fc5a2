"""A client's request: parsed once, and its head made ready for an engine.

The body is forwarded as the bytes that came.
"""

import itertools
import re
import secrets
import time
from collections.abc import Collection
from typing import Final, Protocol

from blade_protocol import anthropic
from blade_protocol import headers as names
from blade_router.http.body_budget import LARGE_BODY, BodyCharge
from blade_router.http.errors import Headers, Refused, header_of
from blade_router.http.head import RawRequest, too_many_bodies
from blade_router.http.response_head import lines
from blade_router.http.trace_context import Trace
from blade_router.request.abridge import MAX_ABRIDGED, MAX_TEXT, PARSED_WHOLE, STEP, Abridged, abridge
from blade_router.request.fields import NOTHING, RoutingFields
from blade_router.request.media import Media, read_media
from blade_router.request.parse import parse_abridged, parse_fields
from blade_router.request.prompt_text import Prompt, expected_size
from blade_router.request.response_ids import response_of
from blade_router.request.routes import ANY_ROUTE, check_path, check_route, methods_of, not_allowed
from blade_router.request.turns import large_bodies
from blade_router.request.usage import Usage
from blade_router.statistics.answer import Answer

METHODS = {b"GET": "GET", b"HEAD": "GET", b"POST": "POST", b"DELETE": "DELETE"}
"""Methods of clients, and what engines get for them: not all of those know HEAD."""

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
"""Headers about one connection (RFC 9110 section 7.6.1)."""
REQUEST_ID = names.REQUEST_ID.encode()
ANTHROPIC_REQUEST_ID = anthropic.REQUEST_ID.encode()
_INTERNAL_TOKEN = names.INTERNAL_TOKEN.encode()
NO_COMMENTS = names.COMMENTS.encode() + b": 0\r\n"
"""Line for a BladeLLM engine: the router keeps its client's stream alive itself."""
ROUTER_PREFIX = names.CLIENT_FORBIDDEN_PREFIX.encode()
# host, content-length and the request's id are written anew; "expect" is answered by our own server
_REPLACED = HOP_BY_HOP | {b"host", b"content-length", b"expect", REQUEST_ID}
_SPECIAL = _REPLACED | {b"content-type", b"content-encoding"}

MAX_EARLIER_ATTEMPTS: Final = 16
"""Those of one request that are kept."""

_JSON = re.compile(rb"application/(?:[\w.-]+\+)?json\b", re.IGNORECASE)
_WITH_BODY = frozenset(path for path, methods in ANY_ROUTE.items() if "POST" in methods)

_prefix = secrets.token_hex(8).encode()
_counter = itertools.count()


class Route(Protocol):
    """How an endpoint was chosen."""

    @property
    def reason(self) -> str: ...


class EarlierAttempt:
    """An attempt of a request of which there were several."""

    __slots__ = ("at", "endpoint", "outcome")

    def __init__(self, endpoint: str, at: float, outcome: str) -> None:
        self.endpoint = endpoint
        """Its name."""
        self.at = at
        """When the endpoint was chosen; of a stream that it had begun, when that broke off or was resumed
        (``time.perf_counter``)."""
        self.outcome = outcome
        """What was wrong, in a word; ``resumed`` where it took over another one's stream."""


class ClientRequest:
    """One request: what limits and policies use of it, and what goes to the engine.

    No dataclass, whose constructor would stay interpreted.
    """

    __slots__ = (
        *(
            "_end",
            "_media",
            "_prompt",
            "_response_id",
            "_start",
            "abridged",
            "added_bytes",
            "added_headers",
            "answer",
            "attempts",
            "begun_usage",
            "chosen_at",
            "earlier_attempts",
            "key",
            "queued_at",
        ),
        *(
            "body",
            "charge",
            "endpoint",
            "events",
            "fields",
            "first_byte_at",
            "headers",
            "id",
            "internal_token",
            "method",
        ),
        *("path", "route", "route_words", "status", "streamed", "trace", "usage"),
    )

    def __init__(
        self,
        method: str,
        path: str,
        fields: RoutingFields,
        body: bytes,
        id: bytes,
        *,
        headers: Headers | None = None,
        start: bytes = b"",
        end: bytes = b"",
        abridged: Abridged | None = None,
        internal_token: str = "",
        charge: BodyCharge | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.method = method
        self.path = path
        self.fields = fields
        self.body = body
        self.id = id
        self.headers: Headers = [] if headers is None else headers
        """As the client sent them, names in lower case."""
        self._start = start
        self._end = end
        self.abridged = abridged
        """What the fields were read from, where the body is too large to be parsed whole."""
        self.added_bytes = 0
        """Bytes of the body that the router has put there, and no prompt is."""
        self.trace = trace
        """The trace it belongs to."""
        self.internal_token = internal_token
        """What its client presented as the internal token, which engines do not see."""
        self.endpoint = ""
        """Name of the endpoint it was sent to last."""
        self.route: Route | None = None
        """How that one was chosen."""
        self.route_words = ""
        """What came before: earlier tries."""
        self.begun_usage: Usage | None = None
        """What the first event of its stream says of that, where it does."""
        self.usage: Usage | None = None
        """Tokens its response says it used; known when it has ended."""
        self.key = ""
        """The name of its API key, once that is known, also where the request is refused."""
        self.queued_at = 0.0
        """When it began to wait for its turn, or for an engine (``time.perf_counter``); 0: it did not."""
        self.chosen_at = 0.0
        """When its last endpoint was chosen (``time.perf_counter``)."""
        self.earlier_attempts: list[EarlierAttempt] | None = None
        """Those before the last; of a stream that was resumed all."""
        self.attempts = 0
        """Endpoints that were tried."""
        self.added_headers: Headers = []
        """Headers the router adds to its response."""
        self.first_byte_at = 0.0
        """Time of the first byte of its response to the client (``time.perf_counter``); 0 before."""
        self.streamed = False
        """The response is an event stream."""
        self.status = 0
        """Status of the response it gets; 0 until then."""
        self.events = 0
        """Events of its response that were relayed: about as many tokens."""
        self.answer: Answer | None = None
        """Its answer, while that is compared with the one to a copy of it."""
        self.charge = charge
        """What it takes of the budget of bodies."""
        self._media: Media | None = None
        self._prompt: Prompt | None = None
        self._response_id: str | None = None

    @property
    def prompt(self) -> Prompt:
        """Its text, for policies that route by it: put together when first needed."""
        if self._prompt is None:
            try:
                self._prompt = Prompt(self.fields, self.abridged)
            except RecursionError:  # nested too deeply to be parsed: it has no known prefix
                self._prompt = Prompt(NOTHING)
            if self.charge is not None:
                self.charge.set_text(len(self._prompt.text))
        return self._prompt

    @property
    def media(self) -> Media:
        """Pictures and other files in its body."""
        if self._media is None:
            self._media = read_media(self.fields, self.body, self.abridged)
        return self._media

    @property
    def response_id(self) -> str:
        """The response that it reads, or goes on from; empty for none."""
        if self._response_id is None:
            self._response_id = response_of(self.path, self.fields.previous_response_id, self.fields.input)
        return self._response_id

    @property
    def goes_on(self) -> bool:
        """The prompt has parts that are not in the request: an engine keeps them."""
        return self.fields.previous_response_id is not None or bool(self.response_id)

    @property
    def route_reason(self) -> str:
        """Why its endpoint was chosen, in full; empty before."""
        return self.route.reason + self.route_words if self.route is not None else ""

    def begin_attempt(self, endpoint: str, route: Route, words: str) -> None:
        """It goes to this endpoint, chosen so; ``words``: what came before."""
        self.endpoint = endpoint
        self.chosen_at = time.perf_counter()
        self.route, self.route_words = route, words
        if self.trace is not None and self.trace.sampled:
            self.trace.begin_attempt(endpoint, self.route_reason)

    def trace_attempt(self, endpoint: str, reason: str) -> None:
        """What is left of it goes to this endpoint."""
        if self.trace is not None and self.trace.sampled:
            self.trace.begin_attempt(endpoint, reason)

    def end_attempt(self, error: str) -> None:
        """That is over; ``error`` says why it failed, empty where it did not."""
        if self.trace is not None and self.trace.sampled:
            self.trace.end_attempt(error)

    @property
    def log_fields(self) -> dict[str, str]:
        """What a line of the log says of it (``extra``)."""
        trace_id = "" if self.trace is None else self.trace.trace_id.decode("ascii")
        return {"request_id": self.id.decode("latin-1"), "trace_id": trace_id, "endpoint": self.endpoint}

    def note_attempt(self, endpoint: str, at: float, outcome: str) -> None:
        """Note an attempt that was not the only one."""
        if self.earlier_attempts is None:
            self.earlier_attempts = []
        if len(self.earlier_attempts) < MAX_EARLIER_ATTEMPTS:
            self.earlier_attempts.append(EarlierAttempt(endpoint, at, outcome))

    def header(self, name: bytes) -> bytes:
        """The first of that name, empty without one."""
        return header_of(self.headers, name)

    def withhold(self, names: Collection[bytes]) -> None:
        """Do not forward headers of these names to engines."""
        for name, value in self.headers:
            if name in names:
                self._end = self._end.replace(b"\r\n%b: %b\r\n" % (name, value), b"\r\n", 1)

    def head_for(self, authority: bytes, extra: bytes = b"", suffix: bytes = b"") -> bytes:
        """Request line and headers for the engine at ``authority`` (``host:port``).

        ``extra`` are further header lines, each with its line end; ``suffix`` ends the request's id.
        """
        if self.trace is not None:
            extra += self.trace.line
        length = b"content-length: %d\r\n%b: %b%b\r\n%b\r\n" % (len(self.body), REQUEST_ID, self.id, suffix, extra)
        return b"".join((self._start, authority, self._end, length))


async def read_request(raw: RawRequest) -> ClientRequest:
    """Parse a client's request for an engine. Other tasks get turns while a large one is read.

    Raises:
        Refused: 404 for a path that is not forwarded, 405 for another method, 415 for a compressed body or one of
            another type than JSON, 400 for one that is no JSON in UTF-8, 413 for one that is too complex.
    """
    method = METHODS.get(raw.method)
    if method is None:
        path = raw.path.decode("ascii")
        check_path(path)
        raise not_allowed(raw.method.decode(), path, methods_of(path))
    kept: Headers = []
    request_id = b""
    content_type = b""
    internal_token = ""
    headers = raw.headers
    dropped = _REPLACED
    for header in headers:
        name, value = header
        if name not in _SPECIAL:
            if name.startswith(ROUTER_PREFIX):
                if name == _INTERNAL_TOKEN:
                    internal_token = value.decode("latin-1")
                continue
        elif name == b"content-type":
            content_type = value
        elif name == b"connection":
            dropped = dropped | {token.strip() for token in value.lower().split(b",")}
            continue
        elif name == REQUEST_ID:
            if len(value) <= 128:
                request_id = value
            continue
        elif name == b"content-encoding":
            if value.lower() != b"identity":
                raise _encoded(value)
        else:
            continue
        kept.append(header)
    if len(dropped) > len(_REPLACED):  # it names headers of its own
        kept = [header for header in headers if header[0] not in dropped and not header[0].startswith(ROUTER_PREFIX)]

    path = raw.path.decode("ascii")
    check_path(path)
    check_route(method, path)
    fields = NOTHING
    abridged = None
    if raw.body or path in _WITH_BODY:
        try:
            if len(raw.body) <= STEP:
                fields = _fields(raw.body, raw.charge)
            else:
                fields, abridged = await read_fields(raw.body, raw.charge)
        except Refused as refused:
            if refused.code == "invalid_json" and content_type and not _JSON.match(content_type):
                raise _not_json(content_type) from None
            raise
        if method != "POST":
            fields, abridged = NOTHING, None  # no engine reads a body there
            if raw.charge is not None:
                raw.charge.set_text(0)
    return ClientRequest(
        method=method,
        path=path,
        fields=fields,
        body=raw.body,
        id=request_id or b"req-%b%x" % (_prefix, next(_counter)),
        headers=headers,
        abridged=abridged,
        charge=raw.charge,
        internal_token=internal_token,
        trace=raw.trace,
        start=b"%b %b HTTP/1.1\r\nhost: " % (method.encode(), raw.target),
        end=b"\r\n%b" % lines(kept),
    )


async def read_fields(body: bytes, charge: BodyCharge | None = None) -> tuple[RoutingFields, Abridged | None]:
    """The fields of a body, and what they were read from where it is too large to be parsed whole: other tasks get
    turns while it is walked.

    Raises:
        Refused: 400, it is no JSON; 413, it is too complex; 503, there is no memory left to read it.
    """
    if len(body) > STEP:
        await large_bodies.next()
    if len(body) <= PARSED_WHOLE:
        return _fields(body, charge), None
    reserved = min(len(body), MAX_ABRIDGED)
    if charge is not None:
        text = min(len(body), MAX_TEXT)
        _check_room(charge, reserved + text)
        charge.add(reserved)
        charge.set_text(text)
    steps = abridge(body)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            abridged: Abridged = end.value
            fields = parse_abridged(abridged.json)
            if charge is not None:
                charge.add(abridged.size - reserved)
                charge.set_text(expected_size(fields))
            return fields, abridged
        await large_bodies.next()


def _fields(body: bytes, charge: BodyCharge | None) -> RoutingFields:
    """The fields of a body that is parsed whole."""
    fields = parse_fields(body)
    if charge is not None and len(body) > LARGE_BODY:
        text = expected_size(fields)
        _check_room(charge, text)
        charge.set_text(text)
    return fields


def _check_room(charge: BodyCharge, more: int) -> None:
    """Raises:
    Refused: 503, there is no memory left for so much.
    """
    if more > LARGE_BODY and not charge.has_room(more):
        raise too_many_bodies()


def _not_json(content_type: bytes) -> Refused:
    message = f"content-type {content_type.decode('latin-1')} is not supported; send JSON in UTF-8, as application/json"
    return Refused(415, message, code="unsupported_media_type")


def _encoded(coding: bytes) -> Refused:
    message = f"content-encoding {coding.decode('latin-1')} is not supported; send the body unencoded"
    return Refused(415, message, code="unsupported_encoding")
