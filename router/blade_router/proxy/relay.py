"""The relay of a response: buffering its head at first, then streaming the rest to the client."""

import time
from collections.abc import Awaitable, Callable

from blade_router.http.client import Client
from blade_router.http.errors import ClientGone, Headers
from blade_router.http.upstream.connection import Connection, Sink
from blade_router.http.upstream.errors import EngineShutdown, UpstreamError
from blade_router.proxy.response_headers import forwardable
from blade_router.request.read_usage import TAIL, usage_of, usage_of_stream
from blade_router.request.request import ClientRequest
from blade_router.request.usage import Usage
from blade_router.resume import EventStream, ResumableStream, event_stream
from blade_router.resume.comments import num_comments, without_comments
from blade_router.statistics.revisions import Attempt

MAX_BUFFERED = 8 << 20
"""Bytes of a unary response that are buffered so that it can be retried elsewhere; a longer one is streamed."""
EVENT_END = b"\n\n"
_MESSAGE_START = b"event: message_start\n"


class BufferedResponse:
    """The buffered head of an engine's response, or all of it."""

    __slots__ = ("body", "complete", "events", "headers", "status")

    def __init__(
        self, *, status: int, headers: Headers, body: bytes, complete: bool, events: EventStream | None
    ) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        """The bytes that may be sent now."""
        self.complete = complete
        self.events = events
        """Set for a server-sent-event stream."""

    def usage(self) -> Usage | None:
        """What a complete response says it used."""
        body = self.body
        if self.events is None:
            return usage_of(body)
        return usage_of_stream(body[-TAIL:], _begun_usage(body))


def _begun_usage(events: bytes) -> Usage | None:
    """What the first event of a message says of its prompt; None for other streams."""
    if not events.startswith(_MESSAGE_START):
        return None
    return usage_of_stream(events[: events.find(EVENT_END)])


def begin(response: BufferedResponse, added: Headers, request: ClientRequest, client: Client) -> Awaitable[None]:
    """Begin the client's response with the head of this one, and the headers that are ``added``.

    Raises:
        ClientGone: the client left.
    """
    request.status = response.status
    whole = response.complete and response.status not in (204, 304)
    headers = forwardable(response.headers, len(response.body) if whole else None)
    if response.events is not None and not whole:  # token ids are taken out, so the engine's length is wrong
        headers = [header for header in headers if header[0] != b"content-length"]
    started = client.start(response.status, headers + added)
    request.first_byte_at = time.perf_counter()
    request.streamed = response.events is not None
    client.stream_begins(response.events if not whole else None)
    if request.answer is not None:
        request.answer.keep(response.body)
    if response.events is not None:
        request.events = response.body.count(EVENT_END) - num_comments(response.body)
        request.begun_usage = _begun_usage(response.body)
    return started


def send_whole(response: BufferedResponse, added: Headers, request: ClientRequest, client: Client) -> Awaitable[None]:
    """Send a complete response, at once as far as the client reads; the result waits for the rest.

    Raises:
        ClientGone: the client left.
    """
    begin(response, added, request, client)
    return client.finish(response.body)


class _Relay(Sink):
    """What each piece of a response passes on its way to the client."""

    __slots__ = ("_client", "_events", "_progressed", "_request", "lost")

    def __init__(
        self,
        events: EventStream | None,
        request: ClientRequest,
        client: Client,
        progressed: Callable[[], None] | None,
    ) -> None:
        self.lost = events is not None and events.lost
        """The engine cannot continue the stream."""
        self._events = events
        self._request = request
        self._client = client
        self._progressed = progressed

    def put(self, part: bytes) -> bool:
        """Write a piece; False when no more is to come for now."""
        return self._client.put(self.whole_events(part)) and not self.lost

    def whole_events(self, chunk: bytes) -> bytes:
        """What of it may be sent now."""
        events = self._events
        if events is None:
            return chunk
        chunk = events.feed(chunk)
        self.lost = events.lost
        self._request.events += events.count
        if self._request.answer is not None:
            self._request.answer.keep(chunk)
        if self._progressed is not None and events.count:
            self._progressed()
        return chunk


async def forward(
    connection: Connection,
    events: EventStream | None,
    request: ClientRequest,
    client: Client,
    progressed: Callable[[], None] | None = None,
) -> UpstreamError | None:
    """Stream the rest of a response to the client; returns why it broke off, if it did.

    Args:
        progressed: called for each piece that has whole events.

    Raises:
        ClientGone: the client left before it had all of it.
    """

    relay = _Relay(events, request, client, progressed)
    if isinstance(events, ResumableStream):  # one of ours
        connection.acknowledge_less()
    try:
        while not (connection.complete or relay.lost):
            await connection.stream_to(relay)
            if not client.ready:
                await client.drained()
        chunk = b"" if relay.lost else relay.whole_events(await connection.read())
    except UpstreamError as error:
        return error
    except ClientGone:
        if events is None or events.split or not events.over:
            raise
        # It left with the last event, as many do, ahead of the response's own end: it has all of it.
        request.usage = usage_of_stream(events.last, request.begun_usage)
        return None
    if relay.lost:
        await client.write(chunk)
        return EngineShutdown("the engine shut down in the middle of it")
    if events is not None:
        chunk += events.end()
        request.usage = usage_of_stream(events.last, request.begun_usage)
        if client.gone and not chunk and events.over and not events.split:
            return None  # as above; the response ended in the same moment
    await client.finish(chunk)
    return None


async def buffer_head(connection: Connection, attempt: Attempt | None = None) -> BufferedResponse:
    """Read the part of a response that has to be there before the client gets any of it.

    ``attempt``: is told when that came.

    Raises:
        UpstreamError: the engine failed while nothing had been sent: the request can go elsewhere.
    """
    headers = connection.headers
    streams = encoded = False
    for name, value in headers:
        if name == b"content-type":
            streams = value.lower().startswith(b"text/event-stream")
        elif name == b"content-encoding":
            encoded = True
    events = event_stream(headers) if streams and not encoded else None
    parts: list[bytes] = []
    size = 0
    while chunk := connection.read_now() or await connection.read():
        part = chunk
        if events is not None:
            part = events.feed(chunk)
            if not size and part.startswith(b":"):  # a comment is no sign that the engine has begun
                part = without_comments(part)
        if part:
            parts.append(part)
        size += len(part)
        if connection.at_end or (size and (streams or size >= MAX_BUFFERED)):
            break
    lost = events is not None and events.lost
    if lost and not size:
        raise EngineShutdown("the engine shut down")
    complete = connection.at_end and not lost
    if complete and events is not None:
        parts.append(events.end())
    if attempt is not None:
        attempt.answered()
    return BufferedResponse(
        status=connection.status,
        headers=headers,
        body=parts[0] if len(parts) == 1 else b"".join(parts),
        complete=complete,
        events=events,
    )
