"""What the operator tells Prometheus about itself."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

RECONCILE = Histogram(
    "blade_operator_reconcile_seconds",
    "One look at a service: deciding and writing, without the wait for its engines.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
FAILURES = Counter("blade_operator_reconcile_failures_total", "Looks that ended in an error and are tried again.")
QUEUE_DEPTH = Gauge("blade_operator_queue_depth", "Services that wait for a look.")
SERVICES = Gauge("blade_operator_services", "LLMServices there are.")
API_REQUESTS = Counter(
    "blade_operator_api_requests_total",
    "Requests to the API server; code 0 is no answer.",
    ["verb", "kind", "code"],
)
WATCH_RESTARTS = Counter("blade_operator_watch_restarts_total", "Watches begun anew after an error.", ["kind"])
LEADER = Gauge("blade_operator_leader", "1 while this process holds the lease.")
