"""The dashboard of the operator: whether it keeps up, and what the API server says to it."""

from __future__ import annotations

from typing import Final

from monitoring.dashboards.panels import Page, Panel, Row, percentiles

_NOW: Final = (
    Panel(title="Leaders", kind="stat", width=4, queries={"": "sum(blade_operator_leader{SELECTED})"}, red_below=1),
    Panel(title="LLMServices", kind="stat", width=4, queries={"": "max(blade_operator_services{SELECTED})"}),
    Panel(
        title="Not ready",
        kind="stat",
        width=4,
        queries={"": "count(blade_operator_service_ready{SELECTED} == 0) or vector(0)"},
        text="LLMServices whose condition Ready is not true.",
        red_above=1,
    ),
    Panel(
        title="Work queue",
        kind="stat",
        width=4,
        queries={"": "max(blade_operator_queue_depth{SELECTED})"},
        red_above=50,
    ),
    Panel(
        title="Reconcile, p99",
        kind="stat",
        width=4,
        unit="s",
        queries={"": percentiles("blade_operator_reconcile_seconds")["p99"]},
        red_above=5,
    ),
    Panel(
        title="Failed reconciles per minute",
        kind="stat",
        width=4,
        queries={"": "60 * sum(rate(blade_operator_reconcile_failures_total{SELECTED}[RATE]))"},
        red_above=1,
    ),
)
_WORK: Final = (
    Panel(
        title="Reconciles",
        unit="cps",
        queries={
            "reconciles": "sum(rate(blade_operator_reconcile_seconds_count{SELECTED}[RATE]))",
            "failed": "sum(rate(blade_operator_reconcile_failures_total{SELECTED}[RATE]))",
        },
    ),
    Panel(title="Time of a reconcile", unit="s", queries=percentiles("blade_operator_reconcile_seconds")),
    Panel(title="Work queue", queries={"{{pod}}": "max by (pod) (blade_operator_queue_depth{SELECTED})"}),
    Panel(
        title="Services",
        queries={
            "all": "max(blade_operator_services{SELECTED})",
            "ready": "sum(blade_operator_service_ready{SELECTED})",
            "scaled": "max(blade_operator_scaled_services{SELECTED})",
            "watched for a wake": "max(blade_operator_demand_watches{SELECTED})",
        },
        text="All LLMServices, those that are ready, those that are scaled, and routers that report a held request.",
    ),
    Panel(
        title="Scaling decisions",
        unit="cps",
        queries={
            "decisions": "sum(rate(blade_operator_decisions_total{SELECTED}[RATE]))",
            "failed": "sum(rate(blade_operator_decision_failures_total{SELECTED}[RATE]))",
        },
    ),
    Panel(title="Leader", top=1, queries={"{{pod}}": "max by (pod) (blade_operator_leader{SELECTED})"}),
)
_API: Final = (
    Panel(
        title="Requests to the API server by status",
        kind="stack",
        unit="reqps",
        queries={"{{code}}": "sum by (code) (rate(blade_operator_api_requests_total{SELECTED}[RATE]))"},
    ),
    Panel(
        title="Requests to the API server by kind",
        kind="stack",
        unit="reqps",
        queries={
            "{{verb}} {{kind}}": "topk(12, sum by (verb, kind) "
            "(rate(blade_operator_api_requests_total{SELECTED}[RATE])))"
        },
        text="The twelve most frequent of verb and kind.",
    ),
    Panel(
        title="Watches started anew",
        queries={
            "{{kind}}": "sum by (kind) (increase(blade_operator_watch_restarts_total{SELECTED}[RATE]))",
            "all": "sum(increase(blade_operator_event_source_restarts_total{SELECTED}[RATE]))",
        },
    ),
    Panel(
        title="Corrections by the sweep",
        queries={"{{kind}}": "sum by (kind) (increase(blade_operator_sweep_corrections_total{SELECTED}[RATE]))"},
    ),
    Panel(title="Skipped kinds", queries={"{{kind}}": "sum by (kind) (blade_operator_skipped{SELECTED})"}),
    Panel(
        title="External metrics",
        unit="reqps",
        queries={"{{code}}": "sum by (code) (rate(blade_operator_external_metrics_requests_total{SELECTED}[RATE]))"},
    ),
)
_PROCESS: Final = (
    Panel(
        title="Kubernetes Events",
        unit="cps",
        queries={"{{outcome}}": "sum by (outcome) (rate(blade_operator_events_total{SELECTED}[RATE]))"},
    ),
    Panel(
        title="Engines that refuse the internal token",
        width=16,
        queries={"requests": "sum(increase(blade_operator_engine_unauthorized_total{SELECTED}[RATE]))"},
    ),
    Panel(
        title="CPU",
        width=12,
        queries={
            "{{pod}}": "sum by (pod) (rate(process_cpu_seconds_total{SELECTED}[RATE]) "
            "and on (namespace, pod) blade_operator_leader)"
        },
        text="Cores that each pod uses.",
    ),
    Panel(
        title="Resident memory",
        width=12,
        unit="bytes",
        queries={
            "{{pod}}": "sum by (pod) (process_resident_memory_bytes{SELECTED} "
            "and on (namespace, pod) blade_operator_leader)"
        },
        text="Of each pod.",
    ),
)
PAGE: Final = Page(
    uid="bladellm-operator",
    title="BladeLLM / Operator",
    text="The operator: reconciles, its work queue, decisions, and requests to the API server.",
    variables={"namespace": ("blade_operator_leader", "namespace")},
    rows=(
        Row("Now", _NOW),
        Row("Work", _WORK),
        Row("API server", _API),
        Row("Process", _PROCESS),
    ),
)
