"""The pieces of OpenTelemetry's SDK that :class:`~blade_telemetry.export.SpanExport` is made of. Importing this module
imports the SDK."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

logger = logging.getLogger("blade_telemetry")


class GivenIds(IdGenerator):
    """Span ids that were noted before the span is made: they went to the next program already."""

    def __init__(self) -> None:
        self._trace_id = self._span_id = 1

    def give(self, trace_id: str, span_id: str) -> None:
        """The next span gets these."""
        self._trace_id, self._span_id = int(trace_id, 16), int(span_id, 16)

    def generate_trace_id(self) -> int:
        return self._trace_id

    def generate_span_id(self) -> int:
        return self._span_id


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


def parent_context(trace_id: str, parent_id: str) -> Context:
    """The context of a span: its parent, which is elsewhere; an empty one where there is none."""
    if not parent_id:
        return Context()
    parent = SpanContext(int(trace_id, 16), int(parent_id, 16), is_remote=True, trace_flags=TraceFlags(1))
    return set_span_in_context(NonRecordingSpan(parent), Context())
