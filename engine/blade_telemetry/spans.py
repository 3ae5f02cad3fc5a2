"""Spans of what has ended, as they wait to be sent. No OpenTelemetry is needed to make them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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


class EndedSpan(Recorded):
    """One span.

    Args:
        trace_id: 32 hexadecimal digits.
        span_id: 16 hexadecimal digits.
        parent_id: as many, or empty where the trace begins with it.
        started: seconds since 1970.
        kind: ``internal``, ``server`` or ``client``.
        error: why it failed; empty where it did not.
    """

    __slots__ = (
        "attributes",
        "ended",
        "error",
        "events",
        "kind",
        "name",
        "parent_id",
        "span_id",
        "started",
        "trace_id",
    )

    count: Final = 1

    def __init__(
        self,
        name: str,
        trace_id: str,
        span_id: str,
        parent_id: str,
        started: float,
        ended: float,
        attributes: Attributes,
        *,
        kind: str = "internal",
        events: Events = (),
        error: str = "",
    ) -> None:
        self.name = name
        self.trace_id = trace_id
        self.span_id = span_id
        self.parent_id = parent_id
        self.started = started
        self.ended = ended
        self.attributes = attributes
        self.kind = kind
        self.events = events
        self.error = error

    def spans(self) -> Iterable[EndedSpan]:
        return (self,)


class DeferredSpans(Recorded):
    """Spans that are made where they are sent.

    Args:
        count: how many that will be.
        spans: makes them; called once, in the thread that sends.
    """

    __slots__ = ("count", "spans")

    def __init__(self, count: int, spans: Callable[[], Iterable[EndedSpan]]) -> None:
        self.count = count
        self.spans = spans


Pending = EndedSpan | DeferredSpans
