"""OpenTelemetry spans: W3C trace context in, OTLP over HTTP (JSON) out.

The protocol is small and the official exporter is not: it would bring threads and a second HTTP client. Spans wait in
a bounded queue and are sent in batches by one task; when the collector is away, new ones are dropped and counted.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from blade_router.http.head import RawRequest
from blade_router.http.trace_context import Span, join
from blade_router.http.upstream.connect import connect
from blade_router.http.upstream.errors import UpstreamError
from blade_router.observability.outcome import MAX_PATH_BYTES, Outcome

logger = logging.getLogger("blade_router.tracing")

FLUSH_SECONDS = 1.0
"""Seconds a span waits at most before it is sent."""
BATCH = 512
MAX_PENDING = 4096
"""The most spans that wait."""
RESPONSE_SECONDS = 5.0
TRACES = "/v1/traces"

_SERVER = 2
_ERROR = 2

Attributes = list[dict[str, Any]]


class Tracer:
    """Creates spans and exports them to a collector; use it as an async context manager.

    Args:
        endpoint: ``http://HOST:PORT`` of an OTLP/HTTP receiver; without a path, ``/v1/traces`` is used.
    """

    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint)
        self._host = parts.hostname or ""
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._target = parts.path if parts.path not in ("", "/") else TRACES
        self._authority = parts.netloc.rpartition("@")[2]
        self._pending: list[dict[str, Any]] = []
        self._dropped = 0
        self._last_error = ""
        self._task: asyncio.Task[None] | None = None
        self._epoch = time.time() - time.perf_counter()

    async def __aenter__(self) -> "Tracer":
        self._task = asyncio.create_task(self._send_all(), name="tracing")
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Send the pending spans, once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        await self._send()

    def begin(self, request: RawRequest) -> None:
        """Join the request's trace, or begin one, and make our span the parent of the engine's.

        A client that does not sample its trace is respected: the headers pass as they are.
        """
        request.span, request.headers = join(request.headers)

    def record(self, outcome: Outcome) -> None:
        """Queue the request's span, if it has one."""
        span = outcome.raw.span
        if span is None:
            return
        if len(self._pending) >= MAX_PENDING:
            self._dropped += 1
            return
        self._pending.append(self._encoded(span, outcome))

    def _encoded(self, span: Span, outcome: Outcome) -> dict[str, Any]:
        raw, request = outcome.raw, outcome.request
        method, path = raw.method.decode("ascii"), raw.path[:MAX_PATH_BYTES].decode("ascii")
        attributes = _texts((("http.request.method", method), ("url.path", path)))
        attributes += _numbers((("http.response.status_code", outcome.status),))
        if request is not None:
            attributes += _texts((("blade.endpoint", request.endpoint), ("blade.route_reason", request.route_reason)))
            attributes += _texts((("gen_ai.request.model", (request.fields.model or "")[:256]),))
            attributes += _numbers((("blade.tries", request.attempts),))
            if request.usage is not None:
                attributes += _numbers(
                    (
                        ("gen_ai.usage.input_tokens", request.usage.prompt_tokens),
                        ("gen_ai.usage.output_tokens", request.usage.completion_tokens),
                    )
                )
        if (first_byte := outcome.first_byte) is not None:
            value = {"doubleValue": first_byte}
            attributes.append({"key": "gen_ai.server.time_to_first_token", "value": value})
        return {
            "traceId": span.trace_id,
            "spanId": span.span_id,
            "parentSpanId": span.parent_id,
            "name": f"{method} {path}",
            "kind": _SERVER,
            "startTimeUnixNano": self._nanoseconds(outcome.started),
            "endTimeUnixNano": self._nanoseconds(outcome.ended),
            "attributes": attributes,
            "status": {"code": _ERROR} if outcome.status >= 500 else {},
        }

    def _nanoseconds(self, moment: float) -> str:
        return str(int((self._epoch + moment) * 1e9))

    async def _send_all(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await self._send()

    async def _send(self) -> None:
        """Send pending spans, a batch at a time; stops at the first that fails, and keeps the rest."""
        while self._pending:
            batch = self._pending[:BATCH]
            try:
                status = await self._post(_message(batch))
                if status in (429, 502, 503, 504):
                    raise ConnectionError(f"status {status}")  # retryable, as the protocol says
            except (UpstreamError, OSError, TimeoutError) as error:
                self._log_error(str(error) or "it took too long")
                return
            del self._pending[: len(batch)]
            self._log_error(f"status {status}" if status >= 300 else "")
        if self._dropped:
            logger.warning("%d spans were dropped while the collector was away", self._dropped)
            self._dropped = 0

    async def _post(self, body: bytes) -> int:
        async with asyncio.timeout(RESPONSE_SECONDS):
            connection = await connect(self._host, self._port, RESPONSE_SECONDS, self._tls)
            try:
                head = (
                    f"POST {self._target} HTTP/1.1\r\nhost: {self._authority}\r\ncontent-type: application/json\r\n"
                    f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
                )
                connection.send(head.encode("latin-1"), body)
                await connection.response()
                return connection.status
            finally:
                connection.abort(ConnectionAbortedError())

    def _log_error(self, error_text: str) -> None:
        if error_text and error_text != self._last_error:
            logger.warning("spans cannot be sent to %s: %s", self._authority, error_text)
        self._last_error = error_text


def _message(spans: list[dict[str, Any]]) -> bytes:
    scope = {"scope": {"name": "blade_router"}, "spans": spans}
    resource = {"attributes": _texts((("service.name", "blade_router"),))}
    return msgspec.json.encode({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]})


def _texts(pairs: Iterable[tuple[str, str]]) -> Attributes:
    return [{"key": name, "value": {"stringValue": value}} for name, value in pairs if value]


def _numbers(pairs: Iterable[tuple[str, int]]) -> Attributes:
    return [{"key": name, "value": {"intValue": str(value)}} for name, value in pairs]
