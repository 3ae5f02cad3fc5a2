"""Spans of requests: the router's own, with the end of its wait in the queue, and below it one for each attempt.

What was noted while the request ran (:mod:`blade_router.http.trace_context`) becomes spans when it has ended, in the
thread that sends them, and only where its trace is recorded. Engines' spans are children of the attempt that reached
them.
"""

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from blade_router.http.accept.trusted_proxies import TrustedProxies
from blade_router.http.trace_context import TraceSampler
from blade_router.observability.metrics import Metrics
from blade_router.observability.outcome import Outcome
from blade_router.observability.traced_request import TracedRequest
from blade_telemetry import names
from blade_telemetry.export import SpanExport
from blade_telemetry.options import TraceOptions, read_options
from blade_telemetry.spans import DeferredSpans, EndedSpan

PROGRAM = "blade_router"


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
        if trace is not None and trace.sampled:
            request = TracedRequest(outcome, trace, self._proxies)
            self.export.send(DeferredSpans(1 + len(trace.attempts), partial(_spans, request, self._epoch)))

    def close(self) -> None:
        """Send the last spans, for a limited time."""
        self.export.close()


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


def _spans(request: TracedRequest, epoch: float) -> Iterator[EndedSpan]:
    """The spans of one request. ``epoch``: when ``time.perf_counter`` was 0, in seconds since 1970."""
    trace = request.trace
    trace_id, span_id = trace.trace_id.decode(), trace.span_id.decode()
    for number, attempt in enumerate(trace.attempts, 1):
        attributes: dict[str, Any] = {
            names.ENDPOINT: attempt.endpoint,
            names.ROUTE_REASON: attempt.reason,
            "blade.attempt": number,
        }
        if attempt.error:
            attributes[names.ERROR_TYPE] = attempt.error
        yield EndedSpan(
            f"attempt {attempt.endpoint}",
            trace_id,
            attempt.span_id.decode(),
            span_id,
            epoch + attempt.started,
            epoch + (attempt.ended or request.ended),
            attributes,
            kind="client",
            error=attempt.error,
        )
    events: list[tuple[str, float, dict[str, Any]]] = []
    if trace.attempts:  # body parsed, key and limits checked, its turn come
        events.append(("admitted", epoch + trace.attempts[0].started, {}))
    if request.began:
        events.append(("first_token", epoch + request.began, {}))
    method, path = request.method.decode("ascii"), request.path.decode("ascii")
    yield EndedSpan(
        f"{method} {path}",
        trace_id,
        span_id,
        trace.parent_id.decode(),
        epoch + request.started,
        epoch + request.ended,
        _attributes(request, method, path),
        kind="server",
        events=events,
        error=f"status {request.status}" if request.status >= 500 else "",
    )


def _attributes(request: TracedRequest, method: str, path: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        names.HTTP_METHOD: method,
        names.URL_PATH: path,
        names.HTTP_STATUS: request.status,
        names.CLIENT_ADDRESS: request.address,
        names.OPERATION: names.operation(path),
        names.KEY: request.key,
    }
    if request.status >= 400:
        found[names.ERROR_TYPE] = str(request.status)
    if request.began:
        found[names.FIRST_CHUNK] = request.began - request.started
    if request.parsed:
        found[names.REQUEST_ID] = request.id.decode("latin-1")
        found[names.REQUEST_MODEL] = request.model
        found[names.REQUEST_STREAM] = request.streamed
        if request.usage is not None:
            found[names.INPUT_TOKENS] = request.usage.prompt_tokens
            found[names.OUTPUT_TOKENS] = request.usage.completion_tokens
            if request.usage.cached_tokens is not None:
                found[names.CACHED_TOKENS] = request.usage.cached_tokens
    return {name: value for name, value in found.items() if value != ""}
