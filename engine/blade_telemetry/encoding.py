"""Spans as OTLP. Importing this module imports OpenTelemetry.

OpenTelemetry's exporter encodes as well, but makes each message apart and copies it into the one around it, level by
level: that takes six times as long, all the while holding the interpreter lock that the router's event loop needs.
Here the same messages are filled in place. https://opentelemetry.io/docs/specs/otlp/
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2
from opentelemetry.sdk.resources import Resource

from blade_telemetry.spans import EndedSpan

_KINDS: Final = {
    "internal": trace_pb2.Span.SPAN_KIND_INTERNAL,
    "server": trace_pb2.Span.SPAN_KIND_SERVER,
    "client": trace_pb2.Span.SPAN_KIND_CLIENT,
}
_FLAGS: Final = trace_pb2.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
_BELOW: Final = _FLAGS | trace_pb2.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK
"""Flags of spans with a parent, which counts as another program's."""


class SpanEncoder:
    """Encodes the spans of one program as its export requests.

    Args:
        resource: what the program says of itself.
        scope: name of what made the spans.
    """

    def __init__(self, resource: Resource, scope: str) -> None:
        self._empty = ExportTraceServiceRequest()
        described = self._empty.resource_spans.add(schema_url=resource.schema_url)
        _set_attributes(described.resource.attributes, resource.attributes)
        described.scope_spans.add().scope.name = scope

    def encode(self, spans: Iterable[EndedSpan]) -> bytes:
        """An ``ExportTraceServiceRequest`` in protobuf. An attribute that cannot be encoded is left out."""
        request = ExportTraceServiceRequest()
        request.CopyFrom(self._empty)
        into = request.resource_spans[0].scope_spans[0].spans
        for span in spans:
            encoded = into.add(
                trace_id=bytes.fromhex(span.trace_id),
                span_id=bytes.fromhex(span.span_id),
                parent_span_id=bytes.fromhex(span.parent_id),
                flags=_BELOW if span.parent_id else _FLAGS,
                name=span.name,
                kind=_KINDS[span.kind],
                start_time_unix_nano=nanoseconds(span.started),
                end_time_unix_nano=nanoseconds(span.ended),
            )
            _set_attributes(encoded.attributes, span.attributes)
            for name, moment, attributes in span.events:
                event = encoded.events.add(name=name, time_unix_nano=nanoseconds(moment))
                _set_attributes(event.attributes, attributes)
            if span.error:
                encoded.status.code = trace_pb2.Status.STATUS_CODE_ERROR
                encoded.status.message = span.error
            else:
                encoded.status.SetInParent()
        found: bytes = request.SerializeToString()
        return found


def nanoseconds(moment: float) -> int:
    """Seconds since 1970 as OpenTelemetry counts them."""
    return int(moment * 1e9)


def _set_attributes(into: Any, attributes: Mapping[str, Any]) -> None:
    for name, value in attributes.items():
        attribute = into.add()
        try:
            attribute.key = name
            _set_value(attribute.value, value)
        except (TypeError, ValueError):  # half a surrogate pair, a number of more than 64 bits
            del into[-1]


def _set_value(into: Any, value: Any) -> None:
    kind = type(value)
    if kind is str:
        into.string_value = value
    elif kind is bool:
        into.bool_value = value
    elif kind is int:
        into.int_value = value
    elif kind is float:
        into.double_value = value
    else:
        into.array_value.SetInParent()
        values = into.array_value.values
        for each in value:
            _set_value(values.add(), each)
