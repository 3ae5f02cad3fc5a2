"""Alerts of services: what their clients meet, by their routers."""

from __future__ import annotations

from typing import Final

from monitoring.alerts.alert import SERVICE, Alert

_NAME: Final = "{{ $labels.namespace }}/{{ $labels.serving_bladellm_io_name }}"

ALERTS: Final = (
    Alert(
        name="BladeServiceErrors",
        expression=(
            f'sum by ({SERVICE}) (rate(blade_router_requests_total{{code=~"5.."}}[5m])) '
            f"/ sum by ({SERVICE}) (rate(blade_router_requests_total[5m])) > 0.05"
        ),
        wait="5m",
        severity="critical",
        summary=f"{_NAME} answers with errors",
        text="{{ $value | humanizePercentage }} of the requests ended with a status of 500 or more, for 5 minutes.",
    ),
    Alert(
        name="BladeServiceNoEngine",
        expression=(
            f"sum by ({SERVICE}) (increase(blade_router_held_arrivals_total[5m])) > 0 "
            f"unless on ({SERVICE}) sum by ({SERVICE}) (blade_router_endpoint_up) > 0"
        ),
        wait="5m",
        severity="critical",
        summary=f"{_NAME} has requests and no engine",
        text="Requests arrive, and no engine has passed its health check for 5 minutes: they wait, and then fail.",
    ),
    Alert(
        name="BladeServiceSlowFirstToken",
        expression=(
            f"histogram_quantile(0.99, sum by (le, {SERVICE}) "
            "(rate(blade_router_time_to_first_token_seconds_bucket[10m]))) > 20"
        ),
        wait="10m",
        severity="warning",
        summary=f"{_NAME} takes long for the first token",
        text="One request of a hundred waits {{ $value | humanizeDuration }} or longer for its first token.",
    ),
    Alert(
        name="BladeServiceSlowTokens",
        expression=(
            f"histogram_quantile(0.9, sum by (le, {SERVICE}) "
            "(rate(blade_router_time_per_output_token_seconds_bucket[10m]))) > 0.5"
        ),
        wait="10m",
        severity="warning",
        summary=f"{_NAME} generates slowly",
        text="One stream of ten gets a token only every {{ $value | humanizeDuration }} or slower.",
    ),
    Alert(
        name="BladeServiceQueueOld",
        expression=f"max by ({SERVICE}) (blade_router_queue_oldest_seconds) > 30",
        wait="5m",
        severity="warning",
        summary=f"Requests to {_NAME} wait long in the queue",
        text="The oldest request in the queue has waited {{ $value | humanizeDuration }}: the engines do not keep up.",
    ),
    Alert(
        name="BladeServiceOverloaded",
        expression=f"max by ({SERVICE}) (blade_router_pool_saturation_ratio) > 1.2",
        wait="15m",
        severity="warning",
        summary=f"{_NAME} is overloaded",
        text="Its engines have had {{ $value | humanizePercentage }} of the load they should have, for 15 minutes.",
    ),
    Alert(
        name="BladeServiceRefusing",
        expression=(
            f"sum by ({SERVICE}) (rate(blade_router_refused_requests_total"
            '{reason=~"queue_full|queue_timeout|hold_full|hold_timeout|overloaded|no_endpoint|busy"}[5m])) '
            f"/ sum by ({SERVICE}) (rate(blade_router_requests_total[5m])) > 0.05"
        ),
        wait="5m",
        severity="warning",
        summary=f"{_NAME} refuses requests",
        text="The router refuses {{ $value | humanizePercentage }} of the requests, as there is no room for them.",
    ),
    Alert(
        name="BladeServiceStreamsLost",
        expression=f'sum by ({SERVICE}) (increase(blade_router_resumes_total{{outcome!="resumed"}}[10m])) > 3',
        wait="0m",
        severity="warning",
        summary=f"Streams of {_NAME} broke off",
        text="{{ $value | humanize }} streams lost their engine within 10 minutes and could not go on elsewhere.",
    ),
    Alert(
        name="BladeServiceRetriesExhausted",
        expression=f"sum by ({SERVICE}) (increase(blade_router_retries_exhausted_total[10m])) > 10",
        wait="5m",
        severity="warning",
        summary=f"{_NAME} is out of retries",
        text="{{ $value | humanize }} retries within 10 minutes were over the budget: many engines fail at once.",
    ),
    Alert(
        name="BladeServiceEngineEjected",
        expression=f"max by ({SERVICE}, endpoint) (blade_router_endpoint_breaker_state) == 2",
        wait="5m",
        severity="warning",
        summary=f"An engine of {_NAME} gets no requests",
        text="The circuit breaker of {{ $labels.endpoint }} has been open for 5 minutes: its requests fail.",
    ),
    Alert(
        name="BladeServiceKeyConfined",
        expression=f"max by ({SERVICE}) (blade_router_confined_keys) > 0",
        wait="0m",
        severity="info",
        summary=f"Requests of a key kill engines of {_NAME}",
        text="{{ $value }} API keys may use a part of the engines only, as requests of theirs killed some.",
    ),
)
