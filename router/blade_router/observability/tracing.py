"""Spans of requests: the router's own, with the end of its wait in the queue, and below it one for each attempt.

What was noted while the request ran (:mod:`blade_router.http.trace_context`) becomes spans when it has ended, and only
where its trace is recorded. Engines' spans are children of the attempt that reached them.
"""

import time
from typing import Any

from blade_router.http.accept.trusted_proxies import FORWARDED_FOR, TrustedProxies
from blade_router.http.trace_context import Trace, TraceSampler
from blade_router.observability.metrics import Metrics
from blade_router.observability.outcome import MAX_PATH_BYTES, Outcome
from blade_telemetry import names
from blade_telemetry.export import SpanExport
from blade_telemetry.options import TraceOptions, read_options

PROGRAM = "blade_router"
MAX_MODEL = 256
"""Characters of a model's name."""


class Tracer:
    """Makes and exports the spans of requests.

    Args:
        proxies: whose word about the client is believed.

    Raises:
        TracingUnavailableError: the extra ``tracing`` is not installed.
    """

    def __init__(self, options: TraceOptions, proxies: TrustedProxies | None = None) -> None:
        self.export = SpanExport(options, PROGRAM)
        self.sampler = TraceSampler(options.sampling.bound, options.sampling.parent_based)
        self._proxies = proxies or TrustedProxies()
        self._epoch = time.time() - time.perf_counter()

    def record(self, outcome: Outcome) -> None:
        """Export the spans of a request whose trace is recorded."""
        trace = outcome.raw.trace
        if trace is None or not trace.sampled:
            return
        trace_id, span_id = trace.trace_id.decode(), trace.span_id.decode()
        self._record_attempts(trace, outcome)
        client = outcome.client
        method, path = _line(outcome)
        events: list[tuple[str, float, dict[str, Any]]] = []
        if trace.attempts:  # body parsed, key and limits checked, its turn come
            events.append(("admitted", self._epoch + trace.attempts[0].started, {}))
        if client.began:
            events.append(("first_token", self._epoch + client.began, {}))
        self.export.span(
            f"{method} {path}",
            trace_id,
            span_id,
            trace.parent_id.decode(),
            self._epoch + outcome.started,
            self._epoch + outcome.ended,
            self._attributes(outcome, method, path),
            kind="server",
            events=events,
            error=f"status {outcome.status}" if outcome.status >= 500 else "",
        )

    def close(self) -> None:
        """Send the last spans, for a limited time."""
        self.export.close()

    def _record_attempts(self, trace: Trace, outcome: Outcome) -> None:
        for number, attempt in enumerate(trace.attempts, 1):
            attributes: dict[str, Any] = {
                names.ENDPOINT: attempt.endpoint,
                names.ROUTE_REASON: attempt.reason,
                "blade.attempt": number,
            }
            if attempt.error:
                attributes[names.ERROR_TYPE] = attempt.error
            self.export.span(
                f"attempt {attempt.endpoint}",
                trace.trace_id.decode(),
                attempt.span_id.decode(),
                trace.span_id.decode(),
                self._epoch + attempt.started,
                self._epoch + (attempt.ended or outcome.ended),
                attributes,
                kind="client",
                error=attempt.error,
            )

    def _attributes(self, outcome: Outcome, method: str, path: str) -> dict[str, Any]:
        raw, request = outcome.raw, outcome.request
        address = outcome.client.address
        if self._proxies.trusts(address):
            address = self._proxies.client(address, [value for name, value in raw.headers if name == FORWARDED_FOR])
        found: dict[str, Any] = {
            names.HTTP_METHOD: method,
            names.URL_PATH: path,
            names.HTTP_STATUS: outcome.status,
            names.CLIENT_ADDRESS: address,
            names.OPERATION: names.operation(path),
            names.KEY: outcome.key,
        }
        if outcome.status >= 400:
            found[names.ERROR_TYPE] = str(outcome.status)
        if outcome.first_byte is not None:
            found[names.FIRST_CHUNK] = outcome.first_byte
        if request is not None:
            found[names.REQUEST_ID] = request.id.decode("latin-1")
            found[names.REQUEST_MODEL] = (request.fields.model or "")[:MAX_MODEL]
            found[names.REQUEST_STREAM] = request.streamed
            if request.usage is not None:
                found[names.INPUT_TOKENS] = request.usage.prompt_tokens
                found[names.OUTPUT_TOKENS] = request.usage.completion_tokens
                if request.usage.cached_tokens is not None:
                    found[names.CACHED_TOKENS] = request.usage.cached_tokens
        return {name: value for name, value in found.items() if value != ""}


def open_tracer(
    endpoint: str | None, sampling: float | None, proxies: TrustedProxies, metrics: Metrics
) -> Tracer | None:
    """The tracer that these flags ask for, or the environment; None: tracing is off.

    Raises as :class:`Tracer`.
    """
    options = read_options(endpoint, sampling)
    if options is None:
        return None
    tracer = Tracer(options, proxies)
    metrics.spans_dropped = lambda: tracer.export.dropped
    return tracer


def _line(outcome: Outcome) -> tuple[str, str]:
    """Method and path."""
    return outcome.raw.method.decode("ascii"), outcome.raw.path[:MAX_PATH_BYTES].decode("ascii")
