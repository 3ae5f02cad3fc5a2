"""The pieces of OpenTelemetry's SDK that :class:`~blade_telemetry.export.SpanExport` is made of. Importing this module
imports the SDK."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import OTEL_RESOURCE_ATTRIBUTES, OTEL_SERVICE_NAME
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

logger = logging.getLogger("blade_telemetry")

_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_UNSET: Final = Status()
_KINDS: Final = {"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER, "client": SpanKind.CLIENT}


class CountingExporter(SpanExporter):
    """Reports what became of each batch, and logs a failure once, until spans arrive again."""

    def __init__(self, exporter: SpanExporter, report: Callable[[Sequence[ReadableSpan], bool], None]) -> None:
        self._exporter = exporter
        self._report = report
        self._failing = False
        logging.getLogger("opentelemetry.exporter.otlp.proto.http").setLevel(logging.CRITICAL)
        logging.getLogger("opentelemetry.exporter.http").setLevel(logging.CRITICAL)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
        except Exception as error:
            logger.debug("spans cannot be exported: %s", error)
            result = SpanExportResult.FAILURE
        taken = result is SpanExportResult.SUCCESS
        self._report(spans, taken)
        if not taken and not self._failing:
            logger.warning("spans cannot be sent to the collector; they are dropped until they can")
        self._failing = not taken
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def otlp_exporter(endpoint: str | None, timeout: float | None) -> SpanExporter:
    """Spans as protobuf over HTTP. What is None is what the environment says."""
    return OTLPSpanExporter(endpoint=endpoint, timeout=timeout)


class SpanFactory:
    """Makes spans of what has ended. The SDK's tracer would first make one that runs, which takes five times as long;
    what the processor and the exporter get is the same.

    Args:
        program: whose spans they are; ``service.name`` where the environment has none.
    """

    def __init__(self, program: str) -> None:
        named = OTEL_SERVICE_NAME in os.environ or "service.name=" in os.environ.get(OTEL_RESOURCE_ATTRIBUTES, "")
        self._resource = Resource.create({} if named else {"service.name": program})
        self._scope = InstrumentationScope(program)

    def make(
        self,
        name: str,
        ids: tuple[str, str, str],
        times: tuple[int, int],
        attributes: Mapping[str, Any],
        kind: str,
        events: Sequence[tuple[str, int, Mapping[str, Any]]],
        error: str,
    ) -> ReadableSpan:
        """One span. ``ids``: of the trace, the span and its parent; ``times``: nanoseconds since 1970."""
        trace_id, span_id, parent_id = ids
        number = int(trace_id, 16)
        parent = SpanContext(number, int(parent_id, 16), True, _SAMPLED) if parent_id else None
        return ReadableSpan(
            name,
            context=SpanContext(number, int(span_id, 16), False, _SAMPLED),
            parent=parent,
            resource=self._resource,
            attributes=attributes,
            events=[Event(event, details, moment) for event, moment, details in events],
            kind=_KINDS[kind],
            status=Status(StatusCode.ERROR, error) if error else _UNSET,
            start_time=times[0],
            end_time=times[1],
            instrumentation_scope=self._scope,
        )
