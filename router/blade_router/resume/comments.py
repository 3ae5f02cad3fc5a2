"""Comments in an event stream (the HTML standard, section 9.2.6): lines that begin with a colon, and mean nothing."""

from typing import Final

_END: Final = b"\n\n"


def num_comments(events: bytes) -> int:
    """How many of these whole events are only a comment."""
    return events.startswith(b":") + events.count(b"\n\n:")


def without_comments(events: bytes) -> bytes:
    """``events`` without the comments before the first event."""
    while events.startswith(b":"):
        _, end, events = events.partition(_END)
        if not end:
            return b""
    return events
