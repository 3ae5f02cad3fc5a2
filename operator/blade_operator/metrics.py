"""Prometheus metrics of the operator itself."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

RECONCILE = Histogram(
    "blade_operator_reconcile_seconds",
    "Time to reconcile one service: deciding and writing, without waiting for its engines to respond.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
FAILURES = Counter("blade_operator_reconcile_failures_total", "Reconciles that ended in an error and are retried.")
QUEUE_DEPTH = Gauge("blade_operator_queue_depth", "Services in the work queue that wait for a worker.")
SERVICES = Gauge("blade_operator_services", "LLMServices that exist.")
SCALED_SERVICES = Gauge("blade_operator_scaled_services", "Services whose number of engines the operator decides on.")
DECISIONS = Counter("blade_operator_decisions_total", "Decisions on a number of engines outside of reconciles.")
LOOK_FAILURES = Counter("blade_operator_decision_failures_total", "Decisions that ended in an error.")
DEMAND_WATCHES = Gauge(
    "blade_operator_demand_watches", "Routers of sleeping services that tell the operator of a held request at once."
)
API_REQUESTS = Counter(
    "blade_operator_api_requests_total",
    "Requests to the API server by verb, kind and HTTP status; code 0 means no response.",
    ["verb", "kind", "code"],
)
WATCH_RESTARTS = Counter(
    "blade_operator_watch_restarts_total", "Kinds that kopf listed anew after an error in their watch.", ["kind"]
)
EVENT_SOURCE_RESTARTS = Counter(
    "blade_operator_event_source_restarts_total", "Times that kopf ended with an error and was started again."
)
SWEEP_CORRECTIONS = Counter(
    "blade_operator_sweep_corrections_total", "Cached objects that a sweep removed or fetched again.", ["kind"]
)
ENGINE_UNAUTHORIZED = Counter(
    "blade_operator_engine_unauthorized_total",
    "Requests that an engine refused because it expects another internal token than this operator's.",
)
EXTERNAL_METRICS_REQUESTS = Counter(
    "blade_operator_external_metrics_requests_total", "Requests to the external metrics API by HTTP status.", ["code"]
)
SKIPPED = Gauge(
    "blade_operator_skipped",
    "1 for each kind that cannot be listed in a namespace (empty: in the whole cluster), which is skipped.",
    ["namespace", "kind"],
)
LEADER = Gauge("blade_operator_leader", "1 while this process holds the lease.")
