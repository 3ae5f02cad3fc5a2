"""How much one port's clients may make the server hold or wait for."""

from __future__ import annotations

import logging
import resource
from typing import Final

import msgspec

from blade_llm.api.common.comments import INTERVAL_SECONDS
from blade_llm.api.common.limits import MAX_BODY_BYTES

MAX_HEAD_BYTES: Final = 64 * 1024
"""Of a request's line and headers; also of chunk extensions and trailers, without a byte of a body between them."""
MAX_HEADERS: Final = 128
MAX_PIPELINED: Final = 16
"""Requests that wait for the response to an earlier one on their connection."""
RESERVED_CONNECTIONS: Final = 64
"""Connections beyond the limit, on which probes are still answered and everything else is a 503."""
_RESERVED_FILES: Final = 256
"""File descriptors for all that is no client: the engine's sockets, the model's files, libraries."""
_log = logging.getLogger(__name__)


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one port in one process; times in seconds. Crosses the process boundary as msgpack."""

    max_connections: int = 4096
    """The one that was idle for longest makes room for the next."""
    max_body_bytes: int = MAX_BODY_BYTES
    max_incomplete_bytes: int = 16 * MAX_BODY_BYTES
    """Of all bodies together that are still being received."""
    head_seconds: float = 10.0
    """From the connection, or the first byte of a later request, to the end of the head."""
    body_seconds: float = 60.0
    """From the end of the head to the end of the body."""
    idle_seconds: float = 75.0
    """Between two requests."""
    comment_seconds: float = INTERVAL_SECONDS
    """Of silence in a stream, after which it gets a comment; 0: never."""
    stall_seconds: float = 120.0
    """For a client that takes too little of its response to make room for more."""


def http_limits(max_connections: int, max_body_bytes: int, comment_seconds: float = INTERVAL_SECONDS) -> HttpLimits:
    """The limits of a port, and file descriptors for them: the soft limit is raised as far as it goes.

    Where that is not far enough the connections are fewer, which is logged.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max_connections + RESERVED_CONNECTIONS + _RESERVED_FILES
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft < needed:
        possible = max(1, soft - RESERVED_CONNECTIONS - _RESERVED_FILES)
        _log.warning(
            "%d connections at most instead of %d, as this process may open %d files: raise ulimit -Hn",
            possible,
            max_connections,
            soft,
        )
        max_connections = possible
    return HttpLimits(
        max_connections=max_connections,
        max_body_bytes=max_body_bytes,
        max_incomplete_bytes=16 * max_body_bytes,
        comment_seconds=comment_seconds,
    )
