"""The way of spans to a collector: names as the conventions have them, bounds, and life without OpenTelemetry."""

import subprocess
import sys
from collections.abc import Sequence
from threading import Event
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.semconv._incubating.attributes import client_attributes, gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes, http_attributes, server_attributes, url_attributes

from blade_telemetry import export, names
from blade_telemetry.context import parse_traceparent
from blade_telemetry.export import SpanExport
from blade_telemetry.options import TraceOptions
from blade_telemetry.sampling import Sampling
from blade_telemetry.spans import EndedSpan

OPTIONS = TraceOptions("http://127.0.0.1:9/v1/traces", Sampling())


class Slow(SpanExporter):
    """Takes spans once it is let."""

    def __init__(self) -> None:
        self.let = Event()
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.let.wait(20)
        self.spans += spans
        return SpanExportResult.SUCCESS


def send(spans: SpanExport, count: int, **options: Any) -> None:
    for number in range(count):
        ids = f"{1:032x}", f"{number + 1:016x}", f"{99:016x}"
        spans.send(EndedSpan("x", *ids, 1.0, 2.0, {"a": 1}, **options))


def test_names_are_those_of_the_conventions() -> None:
    known = {
        value
        for module in (
            *(gen_ai_attributes, client_attributes, server_attributes, http_attributes, url_attributes),
            error_attributes,
        )
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)
    }
    ours = {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
    assert {name for name in ours if "." in name and not name.startswith("blade.")} <= known
    operations = {each.value for each in gen_ai_attributes.GenAiOperationNameValues}
    assert {names.operation(path) for path in names._OPERATIONS} <= operations
    assert names.operation("/v1/models") == ""


def test_a_span_has_the_ids_and_times_that_were_noted() -> None:
    exporter = Slow()
    exporter.let.set()
    spans = SpanExport(OPTIONS, "test", exporter)
    send(spans, 1, kind="client", events=[("begun", 1.5, {})], error="reset")
    spans.close()
    (span,) = exporter.spans
    assert span.context is not None
    assert span.parent is not None
    assert (span.context.trace_id, span.context.span_id, span.parent.span_id) == (1, 1, 99)
    assert (span.start_time, span.end_time, span.events[0].timestamp) == (10**9, 2 * 10**9, 15 * 10**8)
    assert (span.status.is_ok, span.status.description, span.kind.name) == (False, "reset", "CLIENT")
    assert (spans.sent, spans.dropped) == (1, 0)


def test_a_collector_that_is_slow_costs_spans_and_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "MAX_PENDING", 8)
    monkeypatch.setattr(export, "BATCH", 4)
    exporter = Slow()
    spans = SpanExport(OPTIONS, "test", exporter)
    send(spans, 100)
    assert spans.overflowed == 92
    exporter.let.set()
    spans.close()
    assert (spans.sent, spans.dropped, len(exporter.spans)) == (8, 92, 8)


def test_one_that_hangs_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "CLOSE_SECONDS", 0.05)
    exporter = Slow()
    spans = SpanExport(OPTIONS, "test", exporter)
    send(spans, 1)
    spans.close()
    assert not exporter.spans
    exporter.let.set()


WITHOUT = """
import sys
sys.modules["opentelemetry.sdk"] = sys.modules["opentelemetry.exporter"] = None  # as if they were not installed
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", WITHOUT + code], capture_output=True, text=True, timeout=60)


def test_without_opentelemetry_everything_is_imported_and_tracing_says_what_is_missing() -> None:
    imported = run(
        "import blade_telemetry.export, blade_telemetry.logs, blade_router.observability.tracing\n"
        "import blade_llm.server.http.tracing, blade_llm.api.telemetry.tracing\n"
        "blade_telemetry.export.require_opentelemetry()"
    )
    assert imported.returncode == 1
    assert "TracingUnavailableError: tracing needs OpenTelemetry: pip install 'bladellm[tracing]'" in imported.stderr


def test_the_router_does_not_start_without_it_and_says_why() -> None:
    started = run(
        "from blade_router.app import main\n"
        "main(['--endpoints', 'http://127.0.0.1:1', '--port', '0', '--otlp_endpoint', 'http://c:4318'])"
    )
    assert (started.returncode, started.stdout) == (1, "")
    assert started.stderr.startswith("blade_router: tracing needs OpenTelemetry")


@pytest.mark.parametrize(
    ("text", "sampled"),
    [
        (f"00-{1:032x}-{2:016x}-01", True),
        (f"00-{1:032x}-{2:016x}-00", False),
        (f"01-{1:032x}-{2:016x}-03-more", True),
    ],
)
def test_a_callers_place_is_read(text: str, sampled: bool) -> None:
    parent = parse_traceparent(text)
    assert parent is not None
    assert (parent.trace_id, parent.span_id, parent.sampled) == (f"{1:032x}", f"{2:016x}", sampled)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        f"ff-{1:032x}-{2:016x}-01",
        f"00-{0:032x}-{2:016x}-01",
        f"00-{1:032x}-{0:016x}-01",
        "\u06600-" + "1" * 52,
    ],
)
def test_what_is_malformed_is_none(text: str) -> None:
    assert parse_traceparent(text) is None
