"""Prometheus metrics of the operator itself."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from blade_protocol.metrics import MetricSpec

SPECS: Final[list[MetricSpec]] = []
"""Every metric below: ``docs/metrics.md`` is generated from it."""


def _gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
    SPECS.append(MetricSpec(name, "gauge", text, labels))
    return Gauge(name, text, labels)


def _counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
    SPECS.append(MetricSpec(name, "counter", text, labels))
    return Counter(name, text, labels)


def _histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
    SPECS.append(MetricSpec(name, "histogram", text, unit="seconds"))
    return Histogram(name, text, buckets=buckets)


RECONCILE = _histogram(
    "blade_operator_reconcile_seconds",
    "Time to reconcile one service: deciding and writing, without waiting for its engines to respond.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
FAILURES = _counter("blade_operator_reconcile_failures", "Reconciles that ended in an error and are retried.")
QUEUE_DEPTH = _gauge("blade_operator_queue_depth", "Services in the work queue that wait for a worker.")
SERVICES = _gauge("blade_operator_services", "LLMServices that exist.")
SERVICE_READY = _gauge(
    "blade_operator_service_ready",
    "1 for each LLMService whose condition Ready is true, 0 for others; those with spec.replicas 0 are left out.",
    ("service_namespace", "service_name"),
)
SCALED_SERVICES = _gauge("blade_operator_scaled_services", "Services whose number of engines the operator decides on.")
DECISIONS = _counter("blade_operator_decisions", "Decisions on a number of engines outside of reconciles.")
LOOK_FAILURES = _counter("blade_operator_decision_failures", "Decisions that ended in an error.")
DEMAND_WATCHES = _gauge(
    "blade_operator_demand_watches", "Routers of sleeping services that tell the operator of a held request at once."
)
API_REQUESTS = _counter(
    "blade_operator_api_requests",
    "Requests to the API server by verb, kind and HTTP status; code 0 means no response.",
    ("verb", "kind", "code"),
)
WATCH_RESTARTS = _counter(
    "blade_operator_watch_restarts", "Kinds that kopf listed anew after an error in their watch.", ("kind",)
)
EVENT_SOURCE_RESTARTS = _counter(
    "blade_operator_event_source_restarts", "Times that kopf ended with an error and was started again."
)
SWEEP_CORRECTIONS = _counter(
    "blade_operator_sweep_corrections", "Cached objects that a sweep removed or fetched again.", ("kind",)
)
EVENTS = _counter(
    "blade_operator_events",
    "Kubernetes Events by what became of them: emitted, or dropped as one service had too many.",
    ("outcome",),
)
ENGINE_UNAUTHORIZED = _counter(
    "blade_operator_engine_unauthorized",
    "Requests that an engine refused because it expects another internal token than this operator's.",
)
EXTERNAL_METRICS_REQUESTS = _counter(
    "blade_operator_external_metrics_requests", "Requests to the external metrics API by HTTP status.", ("code",)
)
SKIPPED = _gauge(
    "blade_operator_skipped",
    "1 for each kind that cannot be listed in a namespace (empty: in the whole cluster), which is skipped.",
    ("namespace", "kind"),
)
LEADER = _gauge("blade_operator_leader", "1 while this process holds the lease.")
