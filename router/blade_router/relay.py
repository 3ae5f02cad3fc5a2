"""The way of an answer: what is held back of it at first, and the rest as it comes."""

from dataclasses import dataclass

from blade_router.client import Client
from blade_router.errors import Headers
from blade_router.request import ClientRequest
from blade_router.resume import EventStream, event_stream
from blade_router.upstream import Connection
from blade_router.upstream_errors import GivenUp, UpstreamError
from blade_router.usage import usage_of_stream

MAX_HELD = 8 << 20
"""Bytes of a unary answer kept back so that it can be asked for again elsewhere; a longer one is streamed."""
EVENT_END = b"\n\n"


@dataclass(slots=True)
class Answer:
    """The beginning of an engine's answer that is held back, or all of it."""

    status: int
    headers: Headers
    body: bytes
    """What may be sent now."""
    complete: bool
    events: EventStream | None
    """Set for a server-sent-event stream."""


async def forward(
    connection: Connection, events: EventStream | None, request: ClientRequest, client: Client
) -> UpstreamError | None:
    """Send the rest of an answer as it comes; returns why it broke off, if it did.

    Raises:
        ClientGone: nobody reads it any more.
    """

    def passed(chunk: bytes) -> bytes:
        if events is not None:
            chunk = events.feed(chunk)
            request.events += chunk.count(EVENT_END)
        return chunk

    def lost() -> bool:
        return events is not None and events.lost

    try:
        while not (connection.complete or lost()):
            await connection.pour(lambda chunk: client.put(passed(chunk)) and not lost())
            await client.drained()
        chunk = b"" if lost() else passed(await connection.read())
    except UpstreamError as error:
        return error
    if lost():
        await client.write(chunk)
        return GivenUp("the engine shut down in the middle of it")
    if events is not None:
        chunk += events.end()
        request.usage = usage_of_stream(events.last)
    await client.finish(chunk)
    return None


async def hold(connection: Connection) -> Answer:
    """Read the part of an answer that has to be there before the client gets any of it.

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
    while chunk := await connection.read():
        part = events.feed(chunk) if events is not None else chunk
        parts.append(part)
        size += len(part)
        if connection.at_end or (size and (streams or size >= MAX_HELD)):
            break
    lost = events is not None and events.lost
    if lost and not size:
        raise GivenUp("the engine shut down")
    complete = connection.at_end and not lost
    if complete and events is not None:
        parts.append(events.end())
    return Answer(
        status=connection.status,
        headers=headers,
        body=parts[0] if len(parts) == 1 else b"".join(parts),
        complete=complete,
        events=events,
    )
