"""The pieces of OpenTelemetry's SDK that :class:`~blade_telemetry.export.SpanExport` is made of. Importing this module
imports the SDK."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import OTEL_RESOURCE_ATTRIBUTES, OTEL_SERVICE_NAME
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from blade_telemetry.encoding import SpanEncoder, nanoseconds
from blade_telemetry.spans import EndedSpan, Pending

logger = logging.getLogger("blade_telemetry")

_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_UNSET: Final = Status()
_KINDS: Final = {"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER, "client": SpanKind.CLIENT}


class CountingExporter(SpanExporter):
    """Sends what the batch processor hands it, reports what became of each batch, and logs a failure once, until spans
    arrive again.

    Args:
        program: whose spans they are.
        report: gets how many spans were taken, or not; called in the processor's thread.
    """

    def __init__(self, exporter: SpanExporter, program: str, report: Callable[[int, bool], None]) -> None:
        self._exporter = exporter
        self._sender = SpanSender(exporter, program)
        self._report = report
        self._failing = False
        logging.getLogger("opentelemetry.exporter.otlp.proto.http").setLevel(logging.CRITICAL)
        logging.getLogger("opentelemetry.exporter.http").setLevel(logging.CRITICAL)

    def export(self, spans: Sequence[Any]) -> SpanExportResult:
        """Send what waits: each is :class:`~blade_telemetry.spans.Pending`."""
        waited: Sequence[Pending] = spans
        try:
            taken = self._sender.send([span for each in waited for span in each.spans()])
        except Exception as error:
            logger.debug("spans cannot be exported: %s", error)
            taken = False
        self._report(sum(each.count for each in waited), taken)
        if not taken and not self._failing:
            logger.warning("spans cannot be sent to the collector; they are dropped until they can")
        self._failing = not taken
        return SpanExportResult.SUCCESS if taken else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def otlp_exporter(endpoint: str | None, timeout: float | None) -> SpanExporter:
    """Spans as protobuf over HTTP. What is None is what the environment says."""
    return OTLPSpanExporter(endpoint=endpoint, timeout=timeout)


def describe(program: str) -> Resource:
    """What a program says of itself; ``service.name`` is its name where the environment has none."""
    named = OTEL_SERVICE_NAME in os.environ or "service.name=" in os.environ.get(OTEL_RESOURCE_ATTRIBUTES, "")
    return Resource.create({} if named else {"service.name": program})


class SpanSender:
    """Hands batches to an exporter.

    Those of the OTLP exporter are encoded here and go the exporter's way from there, which is not part of its public
    interface: where a version of it has no such way, and where the exporter is another one, it gets spans of the SDK.

    Args:
        program: whose spans they are.
    """

    def __init__(self, exporter: SpanExporter, program: str) -> None:
        self._exporter = exporter
        self._resource = describe(program)
        self._scope = InstrumentationScope(program)
        self._encoder = SpanEncoder(self._resource, program)
        self._client = getattr(exporter, "_client", None) if isinstance(exporter, OTLPSpanExporter) else None

    def send(self, spans: Sequence[EndedSpan]) -> bool:
        """Whether they were taken."""
        if self._client is not None:
            try:
                return bool(self._client.export(self._encoder.encode(spans)).success)
            except (AttributeError, TypeError):  # of another version; what was sent may have arrived
                self._client = None
                return False
        return self._exporter.export([self.readable(span) for span in spans]) is SpanExportResult.SUCCESS

    def readable(self, span: EndedSpan) -> ReadableSpan:
        """The same span as the SDK has it."""
        number = int(span.trace_id, 16)
        parent = SpanContext(number, int(span.parent_id, 16), True, _SAMPLED) if span.parent_id else None
        return ReadableSpan(
            span.name,
            context=SpanContext(number, int(span.span_id, 16), False, _SAMPLED),
            parent=parent,
            resource=self._resource,
            attributes=span.attributes,
            events=[Event(name, attributes, nanoseconds(moment)) for name, moment, attributes in span.events],
            kind=_KINDS[span.kind],
            status=Status(StatusCode.ERROR, span.error) if span.error else _UNSET,
            start_time=nanoseconds(span.started),
            end_time=nanoseconds(span.ended),
            instrumentation_scope=self._scope,
        )
