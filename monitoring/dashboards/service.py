"""The dashboard of a service, by its routers: what clients meet."""

from __future__ import annotations

from typing import Final

from monitoring.dashboards.panels import Page, Panel, Row, percentiles

_NOW: Final = (
    Panel(
        title="Engines in service",
        kind="stat",
        width=4,
        queries={
            "": "sum(max by (namespace, serving_bladellm_io_name, endpoint) (blade_router_endpoint_up{SELECTED}))"
        },
        text="Endpoints whose health check passes, as at least one router sees them.",
        red_below=1,
    ),
    Panel(
        title="Requests per second",
        kind="stat",
        width=4,
        unit="reqps",
        queries={"": "sum(rate(blade_router_requests_total{SELECTED}[RATE]))"},
    ),
    Panel(
        title="Server errors",
        kind="stat",
        width=4,
        unit="percentunit",
        queries={
            "": '(sum(rate(blade_router_requests_total{SELECTED,code=~"5.."}[RATE])) or vector(0)) '
            "/ sum(rate(blade_router_requests_total{SELECTED}[RATE]))"
        },
        text="Share of finished requests with a status of 500 or more.",
        red_above=0.01,
    ),
    Panel(
        title="First token, p99",
        kind="stat",
        width=4,
        unit="s",
        queries={"": percentiles("blade_router_time_to_first_token_seconds")["p99"]},
        red_above=10,
    ),
    Panel(
        title="Time per token, p99",
        kind="stat",
        width=4,
        unit="s",
        queries={"": percentiles("blade_router_time_per_output_token_seconds")["p99"]},
        red_above=0.5,
    ),
    Panel(
        title="Oldest in queue",
        kind="stat",
        width=4,
        unit="s",
        queries={"": "max(blade_router_queue_oldest_seconds{SELECTED})"},
        red_above=30,
    ),
)
_TRAFFIC: Final = (
    Panel(
        title="Requests by status",
        kind="stack",
        unit="reqps",
        queries={"{{code}}": "sum by (code) (rate(blade_router_requests_total{SELECTED}[RATE]))"},
        text="Finished requests per second. 499: the client disconnected.",
    ),
    Panel(
        title="Requests by model",
        kind="stack",
        unit="reqps",
        queries={"{{model}}": "sum by (model) (rate(blade_router_model_requests_total{SELECTED}[RATE]))"},
    ),
    Panel(
        title="In flight and waiting",
        queries={
            "in flight": "sum(blade_router_in_flight_requests{SELECTED})",
            "in the queue": "sum(blade_router_queue_requests{SELECTED})",
            "no engine ready": "sum(blade_router_held_requests{SELECTED})",
        },
        text="Requests that clients wait for; those in the queue and those held are part of them.",
    ),
    Panel(
        title="Tokens per second",
        unit="cps",
        queries={"{{kind}}": "sum by (kind) (rate(blade_router_tokens_total{SELECTED}[RATE]))"},
    ),
    Panel(
        title="Completion tokens by key",
        kind="stack",
        unit="cps",
        queries={
            "{{key}}": 'topk(10, sum by (key) (rate(blade_router_tokens_total{SELECTED,kind="completion"}[RATE])))'
        },
        text="The ten keys that get the most tokens.",
    ),
    Panel(
        title="Prefix-cache hits",
        unit="percentunit",
        top=1,
        queries={"hits": "avg(blade_router_prefix_hit_ratio{SELECTED})"},
    ),
)
_LATENCY: Final = (
    Panel(title="Time to first token", unit="s", queries=percentiles("blade_router_time_to_first_token_seconds")),
    Panel(title="Time per output token", unit="s", queries=percentiles("blade_router_time_per_output_token_seconds")),
    Panel(title="Whole responses", unit="s", queries=percentiles("blade_router_request_duration_seconds")),
    Panel(
        title="Time to first token, all requests",
        kind="heatmap",
        unit="s",
        width=12,
        queries={"{{le}}": "sum by (le) (increase(blade_router_time_to_first_token_seconds_bucket{SELECTED}[RATE]))"},
    ),
    Panel(
        title="First byte of any response",
        unit="s",
        width=12,
        queries=percentiles("blade_router_time_to_first_byte_seconds"),
    ),
)
_LOAD: Final = (
    Panel(
        title="Load of the engines",
        unit="percentunit",
        queries={
            "{{serving_bladellm_io_name}}": "max by (serving_bladellm_io_name) "
            "(blade_router_pool_saturation_ratio{SELECTED})"
        },
        text="Load relative to the target: above 100 % more engines are needed.",
    ),
    Panel(title="Time in the queue", unit="s", queries=percentiles("blade_router_queue_duration_seconds")),
    Panel(
        title="Age of what is in the queue",
        unit="s",
        queries={
            "oldest": "max(blade_router_queue_oldest_seconds{SELECTED})",
            "p95": "max(blade_router_queue_age_p95_seconds{SELECTED})",
        },
    ),
    Panel(
        title="Tokens in the queue",
        queries={"tokens": "sum(blade_router_queue_tokens{SELECTED})"},
    ),
    Panel(
        title="Memory of bodies",
        unit="bytes",
        queries={
            "in flight": "sum(blade_router_body_bytes{SELECTED})",
            "in the queue": "sum(blade_router_queue_bytes{SELECTED})",
        },
    ),
    Panel(
        title="Time to drain",
        unit="s",
        queries={"drain": "max(blade_router_drain_seconds{SELECTED})"},
    ),
)
_FAILURES: Final = (
    Panel(
        title="Refused requests",
        kind="stack",
        unit="reqps",
        queries={"{{reason}}": "sum by (reason) (rate(blade_router_refused_requests_total{SELECTED}[RATE]))"},
    ),
    Panel(
        title="Retries",
        unit="reqps",
        queries={
            "{{reason}}": "sum by (reason) (rate(blade_router_retries_total{SELECTED}[RATE]))",
            "over the budget": "sum(rate(blade_router_retries_exhausted_total{SELECTED}[RATE]))",
        },
    ),
    Panel(
        title="Streams that lost their engine",
        unit="reqps",
        queries={"{{outcome}}": "sum by (outcome) (rate(blade_router_resumes_total{SELECTED}[RATE]))"},
        text="Streams whose engine was lost after their first byte; resumed: the client noticed nothing.",
    ),
    Panel(
        title="Requests that found no engine",
        unit="reqps",
        queries={"held": "sum(rate(blade_router_held_arrivals_total{SELECTED}[RATE]))"},
    ),
    Panel(
        title="Confined keys",
        queries={"keys": "max(blade_router_confined_keys{SELECTED})"},
    ),
    Panel(
        title="Copies of requests",
        unit="reqps",
        queries={
            "{{outcome}}": "sum by (outcome) (rate(blade_router_shadow_requests_total{SELECTED}[RATE]))",
            "texts {{outcome}}": "sum by (outcome) (rate(blade_router_shadow_texts_total{SELECTED}[RATE]))",
        },
        text="Shadow traffic of a canary, and whether greedy answers are the same.",
    ),
)
_ENDPOINTS: Final = (
    Panel(
        title="Requests on each engine",
        queries={"{{endpoint}}": "sum by (endpoint) (blade_router_endpoint_in_flight_requests{SELECTED})"},
    ),
    Panel(
        title="Circuit breakers",
        top=2,
        queries={"{{endpoint}}": "max by (endpoint) (blade_router_endpoint_breaker_state{SELECTED})"},
    ),
    Panel(
        title="Weight of each engine",
        unit="percentunit",
        queries={"{{endpoint}}": "min by (endpoint) (blade_router_endpoint_weight_ratio{SELECTED})"},
    ),
)
_ROUTERS: Final = (
    Panel(
        title="Connections of clients",
        queries={
            "{{pod}}": "sum by (pod) (blade_router_client_connections{SELECTED})",
            "evicted per second": "sum(rate(blade_router_evicted_connections_total{SELECTED}[RATE]))",
        },
    ),
    Panel(
        title="CPU of routers",
        queries={
            "{{pod}}": "sum by (pod) (rate(process_cpu_seconds_total{SELECTED}[RATE]) "
            "and on (namespace, pod) blade_router_in_flight_requests)"
        },
        text="Cores that each router uses.",
    ),
    Panel(
        title="Spans that were dropped",
        unit="cps",
        queries={"spans": "sum(rate(blade_router_spans_dropped_total{SELECTED}[RATE]))"},
    ),
    Panel(
        title="Events between routers",
        unit="cps",
        queries={
            "{{kind}}": "sum by (kind) (rate(blade_router_replica_sync_events_total{SELECTED}[RATE]))",
            "siblings": "min(blade_router_replica_sync_siblings{SELECTED})",
        },
    ),
)
PAGE: Final = Page(
    uid="bladellm-service",
    title="BladeLLM / Service",
    text="An LLMService as its clients meet it: rate, errors, latency, queue, and which engine does what.",
    variables={
        "namespace": ("blade_router_in_flight_requests", "namespace"),
        "service": ('blade_router_in_flight_requests{namespace=~"$namespace"}', "serving_bladellm_io_name"),
    },
    rows=(
        Row("Now", _NOW),
        Row("Traffic", _TRAFFIC),
        Row("Latency", _LATENCY),
        Row("Load and queue", _LOAD),
        Row("Failures", _FAILURES),
        Row("Engines, as the routers see them", _ENDPOINTS),
        Row("Routers", _ROUTERS),
    ),
)
