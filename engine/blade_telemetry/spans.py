"""Spans of what has ended, as they wait to be sent. No OpenTelemetry is needed to make them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Final

Value = str | int | float | bool | Sequence[str]
Attributes = Mapping[str, Value]
Events = Sequence[tuple[str, float, Attributes]]
"""Name, seconds since 1970, attributes."""


class _Flags:
    sampled: Final = True


class _Context:
    trace_flags: Final = _Flags()


class Recorded:
    """What waits is recorded: OpenTelemetry's batch processor asks that, and nothing else."""

    __slots__ = ()

    context: ClassVar[_Context] = _Context()


@dataclass(slots=True)
class EndedSpan(Recorded):
    """One span.

    Args:
        trace_id: 32 hexadecimal digits.
        span_id: 16 hexadecimal digits.
        parent_id: as many, or empty where the trace begins with it.
        started: seconds since 1970.
        kind: ``internal``, ``server`` or ``client``.
        events: name, seconds since 1970, attributes.
        error: why it failed; empty where it did not.
    """

    count: ClassVar[int] = 1

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    started: float
    ended: float
    attributes: Attributes
    _: KW_ONLY
    kind: str = "internal"
    events: Events = ()
    error: str = ""

    def spans(self) -> Iterable[EndedSpan]:
        return (self,)


@dataclass(slots=True)
class DeferredSpans(Recorded):
    """Spans that are made where they are sent.

    Args:
        count: how many that will be.
        spans: makes them; called once, in the thread that sends. What it takes them from must not change any more.
    """

    count: int
    spans: Callable[[], Iterable[EndedSpan]]


Pending = EndedSpan | DeferredSpans
