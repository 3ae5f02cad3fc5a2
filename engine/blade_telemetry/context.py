"""W3C trace context: ``traceparent`` as another program sends it. https://www.w3.org/TR/trace-context/"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

TRACEPARENT: Final = "traceparent"
_FORM: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?", re.ASCII
)
_SAMPLED: Final = 1


@dataclass(frozen=True, slots=True)
class TraceParent:
    """The caller's place in a trace."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """The caller's span, 16 hexadecimal digits."""
    sampled: bool
    """The caller records it."""


def parse_traceparent(text: str) -> TraceParent | None:
    """The caller's place; None for a header that is missing or malformed."""
    found = _FORM.fullmatch(text)
    return None if found is None else TraceParent(found[1], found[2], bool(int(found[3], 16) & _SAMPLED))
