"""W3C trace context: the trace a request belongs to, and the header that passes it on to the engine."""

import re
import secrets
from dataclasses import dataclass

from blade_router.http.errors import Headers, header_of

_PARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_SAMPLED = 1


@dataclass(slots=True)
class Span:
    """The router's span in a trace."""

    trace_id: str
    span_id: str
    parent_id: str
    """The client's span; empty when the trace begins here."""


def join(headers: Headers) -> tuple[Span | None, Headers]:
    """A span in the trace of these headers, or in a new one, and the headers that make it the engine's parent.

    A client that does not sample its trace is respected: there is no span, and the headers pass as they are.
    """
    parent = header_of(headers, b"traceparent")
    found = _PARENT.fullmatch(parent)
    if found is None:
        dropped = [b"traceparent", b"tracestate"]  # the state belongs to an invalid trace
        span = Span(secrets.token_hex(16), secrets.token_hex(8), "")
    elif not int(found[3], 16) & _SAMPLED:
        return None, headers
    else:
        dropped = [b"traceparent"]
        span = Span(found[1].decode(), secrets.token_hex(8), found[2].decode())
    kept = [header for header in headers if header[0] not in dropped]
    return span, [*kept, (b"traceparent", f"00-{span.trace_id}-{span.span_id}-01".encode())]
