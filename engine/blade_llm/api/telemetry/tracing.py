"""Traces of requests: the server's span of each, and its phases as spans below that.

Nothing is measured for a trace that is not measured anyway: spans are made when a request has ended, from what its
result noted for the metrics. Where a request is not recorded, all this is one look at its headers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.requests import Request
from starlette.types import Scope

from blade_telemetry import names
from blade_telemetry.context import parse_traceparent
from blade_telemetry.export import SpanExport, new_span_id, new_trace_id
from blade_telemetry.options import TraceOptions, read_options
from blade_telemetry.spans import EndedSpan, Value

PROGRAM: Final = "blade_llm"
STATE: Final = "trace"
"""Where a request's state has its trace."""


@dataclass(slots=True)
class RequestTrace:
    """What is noted of one request that is recorded. Times are seconds of the monotonic clock."""

    trace_id: str
    span_id: str
    """The server's span."""
    parent_id: str
    """The caller's span; empty where the trace begins here."""
    started: float = field(default_factory=time.monotonic)
    name: str = ""
    """Of the server's span; method and path when empty."""
    attributes: dict[str, Value] = field(default_factory=dict)
    phases: list[tuple[str, float, float, dict[str, Value]]] = field(default_factory=list)
    """Spans below the server's: name, start, end, attributes."""
    events: list[tuple[str, float, dict[str, Value]]] = field(default_factory=list)
    at_end: list[Callable[[], None]] = field(default_factory=list)
    """Called when the response has ended, to add what is known then."""

    def event(self, name: str, **attributes: Value) -> None:
        """Something happened now."""
        self.events.append((name, time.monotonic(), attributes))


class RequestTracer:
    """Decides which requests are recorded, and exports their spans."""

    def __init__(self, options: TraceOptions, export: SpanExport | None = None) -> None:
        self._sampling = options.sampling
        self.export = export or SpanExport(options, PROGRAM)
        self._epoch = time.time() - time.monotonic()

    def begin(self, traceparent: str) -> tuple[str, RequestTrace | None]:
        """The trace's id, and what to note of the request; None: it is not recorded."""
        parent = parse_traceparent(traceparent)
        trace_id = new_trace_id() if parent is None else parent.trace_id
        if not self._sampling.samples(int(trace_id, 16), None if parent is None else parent.sampled):
            return trace_id, None
        return trace_id, RequestTrace(trace_id, new_span_id(), "" if parent is None else parent.span_id)

    def end(self, trace: RequestTrace, name: str, attributes: Mapping[str, Value], status: int) -> None:
        """Export the spans of a request that has ended with this HTTP status; 0: without a response."""
        for add in trace.at_end:
            add()
        ended, epoch = time.monotonic(), self._epoch
        for phase, start, end, details in trace.phases:
            self.export.send(
                EndedSpan(phase, trace.trace_id, new_span_id(), trace.span_id, epoch + start, epoch + end, details)
            )
        found: dict[str, Any] = {**attributes, **trace.attributes}
        if status:
            found[names.HTTP_STATUS] = status
        failed = status >= 500 or not status
        if failed or status >= 400:
            found[names.ERROR_TYPE] = str(status) if status else "disconnected"
        self.export.send(
            EndedSpan(
                trace.name or name,
                trace.trace_id,
                trace.span_id,
                trace.parent_id,
                epoch + trace.started,
                epoch + ended,
                {key: value for key, value in found.items() if value != ""},
                kind="server",
                events=[(event, epoch + moment, details) for event, moment, details in trace.events],
                error=found.get(names.ERROR_TYPE, "") if failed else "",
            )
        )


def open_tracer() -> RequestTracer | None:
    """The tracer that the environment asks for; None: tracing is off.

    Raises :class:`~blade_telemetry.export.TracingUnavailableError`, and ValueError for a sampler that is none.
    """
    options = read_options(None, None, os.environ)
    return None if options is None else RequestTracer(options)


def trace_of(request: Request) -> RequestTrace | None:
    """What to note of a request; None: it is not recorded."""
    return trace_in(request.scope)


def trace_in(scope: Scope) -> RequestTrace | None:
    """The same of an ASGI scope."""
    found: RequestTrace | None = scope.get("state", {}).get(STATE)
    return found
