"""Every metric of the router: its type, its labels and its help, and the families made of them.

``docs/metrics.md`` is generated from it.
"""

from collections.abc import Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from blade_protocol import metrics as names
from blade_protocol.metrics import MetricSpec

SPECS: Final = (
    MetricSpec(names.ROUTER_REQUESTS, "counter", "Finished requests by status.", ("code",)),
    MetricSpec(
        names.ROUTER_MODEL_REQUESTS,
        "counter",
        "Finished requests by key, model and status.",
        ("key", "model", "code"),
    ),
    MetricSpec(
        names.ROUTER_TOKENS,
        "counter",
        "Tokens by key and model; cached tokens are part of the prompt's.",
        ("key", "model", "kind"),
        "tokens",
    ),
    MetricSpec(names.ROUTER_REFUSED, "counter", "Requests the router refused, by error code.", ("reason",)),
    MetricSpec(names.ROUTER_RETRIES, "counter", "Requests retried on another endpoint.", ("reason",)),
    MetricSpec(names.ROUTER_RETRIES_EXHAUSTED, "counter", "Retries refused by the retry budget."),
    MetricSpec(names.ROUTER_SPANS_DROPPED, "counter", "Spans of traces that never reached the collector."),
    MetricSpec(names.ROUTER_RESUMES, "counter", "Streams that lost their engine, by outcome.", ("outcome",)),
    MetricSpec(names.ROUTER_SHADOWS, "counter", "Copies of requests, by what came of them.", ("outcome",)),
    MetricSpec(
        names.ROUTER_SHADOW_TEXTS,
        "counter",
        "Greedy requests that were copied, by whether both texts are the same.",
        ("outcome",),
    ),
    MetricSpec(
        names.ROUTER_TTFT,
        "histogram",
        "Time from the request to the first byte of its response.",
        unit="seconds",
    ),
    MetricSpec(
        names.ROUTER_TTFT_STREAM,
        "histogram",
        "Time from the request to the first byte of its stream.",
        unit="seconds",
    ),
    MetricSpec(
        names.ROUTER_TPOT,
        "histogram",
        "Time per output token after the first, of streams with usage.",
        unit="seconds",
    ),
    MetricSpec(
        names.ROUTER_E2E,
        "histogram",
        "Time from the request to the last byte of its response.",
        unit="seconds",
    ),
    MetricSpec(
        names.ROUTER_QUEUE_WAIT, "histogram", "Time in the queue, of requests that had to wait.", unit="seconds"
    ),
    MetricSpec(names.ROUTER_IN_FLIGHT, "gauge", "Requests in flight."),
    MetricSpec(
        names.ROUTER_DRAIN,
        "gauge",
        "Time until all in-flight requests have ended, at the present rate.",
        unit="seconds",
    ),
    MetricSpec(
        names.ROUTER_HIT_RATIO,
        "gauge",
        "Prefix-cache hits: cached by prompt tokens, of the last minute.",
        unit="ratio",
    ),
    MetricSpec(names.ROUTER_CONNECTIONS, "gauge", "Open connections of clients."),
    MetricSpec(names.ROUTER_EVICTED_CONNECTIONS, "counter", "Connections closed to make room for new ones."),
    MetricSpec(names.ROUTER_BODY_BYTES, "gauge", "Memory of request bodies in flight.", unit="bytes"),
    MetricSpec(names.ROUTER_QUEUE_REQUESTS, "gauge", "Requests in the queue.", ("service",)),
    MetricSpec(
        names.ROUTER_QUEUE_TOKENS,
        "gauge",
        "Tokens of the requests in the queue, outputs included.",
        ("service",),
        "tokens",
    ),
    MetricSpec(names.ROUTER_QUEUE_BYTES, "gauge", "Bytes of the requests in the queue.", ("service",), "bytes"),
    MetricSpec(names.ROUTER_QUEUE_OLDEST, "gauge", "Age of the oldest request in the queue.", ("service",), "seconds"),
    MetricSpec(
        names.ROUTER_QUEUE_P95,
        "gauge",
        "Age that 95 % of the requests in the queue have not reached.",
        ("service",),
        "seconds",
    ),
    MetricSpec(
        names.ROUTER_SATURATION, "gauge", "Load of the engines relative to their target, 1.", ("service",), "ratio"
    ),
    MetricSpec(names.ROUTER_HELD, "gauge", "Requests buffered because no engine is ready.", ("service",)),
    MetricSpec(
        names.ROUTER_HELD_ARRIVALS,
        "counter",
        "Requests that found no engine ready and were buffered.",
        ("service",),
    ),
    MetricSpec(
        names.ROUTER_SYNC_EVENTS,
        "counter",
        "Events of router replica sync: sent, received, ignored, and dropped ones or messages.",
        ("kind",),
    ),
    MetricSpec(names.ROUTER_SYNC_SIBLINGS, "gauge", "Router processes whose events arrive."),
    MetricSpec(names.ROUTER_ENDPOINT_UP, "gauge", "1 when the active health check passed.", ("endpoint",)),
    MetricSpec(names.ROUTER_ENDPOINT_IN_FLIGHT, "gauge", "Requests in flight on the endpoint.", ("endpoint",)),
    MetricSpec(names.ROUTER_BREAKER, "gauge", "Circuit breaker: 0 closed, 1 half open, 2 open.", ("endpoint",)),
    MetricSpec(
        names.ROUTER_ENDPOINT_WEIGHT,
        "gauge",
        "Load-balancing weight; below 1 during slow start.",
        ("endpoint",),
        "ratio",
    ),
    MetricSpec(
        names.ROUTER_CONFINED_KEYS,
        "gauge",
        "API keys that may use a part of the engines only, as requests of theirs killed some.",
    ),
)
CATALOGUE: Final[Mapping[str, MetricSpec]] = {spec.name: spec for spec in SPECS}


def gauge(name: str, value: float | None = None) -> GaugeMetricFamily:
    """The gauge of this name. ``value``: its only one; None: none yet, or one for each of its labels' values."""
    spec = CATALOGUE[name]
    return GaugeMetricFamily(name, spec.text, value=value, labels=spec.labels if value is None else None)


def counter(name: str, value: float | None = None) -> CounterMetricFamily:
    """The counter of this name. ``value``: its only one; None: one for each of its labels' values."""
    spec = CATALOGUE[name]
    return CounterMetricFamily(name, spec.text, value=value, labels=spec.labels if value is None else None)
