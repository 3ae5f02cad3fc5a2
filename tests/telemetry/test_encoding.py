"""Spans on the wire: what is encoded here is what OpenTelemetry's exporter would have encoded."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from telemetry_support.collector import collecting

from blade_telemetry import otlp
from blade_telemetry.encoding import SpanEncoder
from blade_telemetry.export import SpanExport
from blade_telemetry.options import TraceOptions, traces_url
from blade_telemetry.otlp import SpanSender, describe, otlp_exporter
from blade_telemetry.sampling import Sampling
from blade_telemetry.spans import EndedSpan

TRACE, SPAN, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", "b7ad6b7169203331"


def ended(
    parent_id: str = "", error: str = "", kind: str = "internal", events: Any = (), **attributes: Any
) -> EndedSpan:
    moment = 1_700_000_000.123456
    return EndedSpan(
        *("chat é", TRACE, SPAN, parent_id, moment, moment + 0.25, attributes), kind=kind, events=events, error=error
    )


SPANS = [
    ended(),
    ended(PARENT, kind="server", text="é", number=-3, large=2**63 - 1, ratio=0.1, yes=True, no=False, zero=0, empty=""),
    ended(PARENT, "reset", "client", several=["stop", "length"], none=[]),
    ended(events=[("admitted", 1_700_000_000.2, {}), ("tool_call", 1_700_000_000.3, {"name": "f"})]),
]


def encoded(spans: list[EndedSpan]) -> ExportTraceServiceRequest:
    request: ExportTraceServiceRequest = ExportTraceServiceRequest.FromString(
        SpanEncoder(describe("test"), "test").encode(spans)
    )
    return request


def spans_of(request: ExportTraceServiceRequest) -> Any:
    return request.resource_spans[0].scope_spans[0].spans


def test_the_request_is_the_one_that_opentelemetry_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    sender = SpanSender(OTLPSpanExporter("http://127.0.0.1:9/v1/traces"), "test")
    assert encoded(SPANS) == encode_spans([sender.readable(span) for span in SPANS])


@pytest.mark.parametrize("value", ["\ud800", 2**64, None, ["a", "\ud800"]])
def test_what_cannot_be_encoded_is_left_out_alone(value: Any) -> None:
    (span,) = spans_of(encoded([ended(first=1, bad=value, last=2)]))
    assert [(each.key, each.value.int_value) for each in span.attributes] == [("first", 1), ("last", 2)]


def test_an_exporter_with_another_way_to_send_gets_spans_of_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the next batch on: what the first call has sent may have arrived."""
    exporter = OTLPSpanExporter("http://127.0.0.1:9/v1/traces")
    got: list[list[str]] = []

    def export(spans: Sequence[ReadableSpan]) -> SpanExportResult:
        got.append([span.name for span in spans])
        return SpanExportResult.SUCCESS

    monkeypatch.setattr(exporter, "_client", SimpleNamespace(export=lambda request: True))
    monkeypatch.setattr(exporter, "export", export)
    sender = SpanSender(exporter, "test")
    assert [sender.send(SPANS[:1]) for _ in range(2)] == [False, True]
    assert got == [[SPANS[0].name]]


def send(exports: SpanExport) -> None:
    for _ in range(3):
        exports.send(EndedSpan("x", TRACE, SPAN, PARENT, 1.0, 2.0, {"a": 1}))
    exports.close()


@pytest.mark.parametrize("known", [True, False], ids=["its-own-exporter", "another"])
def test_no_span_of_the_sdk_is_made_for_its_own_exporter(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Noted(ReadableSpan):
        def __init__(self, *given: Any, **options: Any) -> None:
            made.append(self)
            super().__init__(*given, **options)

    monkeypatch.setattr(otlp, "ReadableSpan", Noted)
    with collecting() as collector:
        url = traces_url(collector.url)
        exporter = otlp_exporter(url, 5.0)
        if not known:
            monkeypatch.setattr(otlp, "OTLPSpanExporter", type("Other", (), {}))
        exports = SpanExport(TraceOptions(url, Sampling()), "test", exporter)
        assert not made, "nothing is made of a span where it ended"
        send(exports)
        assert [span.attributes for span in collector.spans] == [{"a": 1}] * 3
    assert (exports.sent, exports.dropped, len(made)) == (3, 0, 0 if known else 3)
