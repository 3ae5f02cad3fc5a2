"""An OTLP collector: an HTTP server that reads protobuf, as a real one does, and keeps the spans."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Received:
    """One span as the collector got it."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    start: int
    end: int
    """Nanoseconds since 1970."""
    attributes: dict[str, Any]
    events: dict[str, dict[str, Any]]
    times: dict[str, int]
    """When each event was."""
    is_error: bool
    resource: dict[str, Any]


class Collector:
    """What arrived; ``status``: what it responds with."""

    def __init__(self) -> None:
        self.url = ""
        self.status = 200
        self.posts = 0
        self._spans: list[Received] = []
        self._lock = threading.Lock()

    @property
    def spans(self) -> list[Received]:
        with self._lock:
            return list(self._spans)

    def named(self, name: str) -> list[Received]:
        """Spans whose names begin so, in order of their start."""
        return sorted((span for span in self.spans if span.name.startswith(name)), key=lambda span: span.start)

    def take(self, path: str, kind: str, body: bytes) -> int:
        """Take one request; returns the status of its response."""
        assert (path, kind) == ("/v1/traces", "application/x-protobuf")
        with self._lock:
            self.posts += 1
            if self.status == 200:
                self._spans += _spans(ExportTraceServiceRequest.FromString(body))
        return self.status

    @staticmethod
    def pause() -> None:
        """Let some time pass for spans to arrive."""
        time.sleep(0.05)

    def wait_for(self, count: int, seconds: float = 20.0) -> list[Received]:
        """Its spans, once there are so many."""
        deadline = time.monotonic() + seconds
        while len(self.spans) < count and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(self.spans) >= count, [span.name for span in self.spans]
        return self.spans


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that listens on a port of its own."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status = collector.take(self.path, self.headers["content-type"], body)
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()


def _spans(request: ExportTraceServiceRequest) -> list[Received]:
    return [
        Received(
            name=span.name,
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            kind=span.kind,
            start=span.start_time_unix_nano,
            end=span.end_time_unix_nano,
            attributes=_attributes(span.attributes),
            events={event.name: _attributes(event.attributes) for event in span.events},
            times={event.name: event.time_unix_nano for event in span.events},
            is_error=span.status.code == span.status.STATUS_CODE_ERROR,
            resource=_attributes(resource.resource.attributes),
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
