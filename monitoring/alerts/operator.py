"""Alerts of the operator."""

from __future__ import annotations

from typing import Final

from monitoring.alerts.alert import Alert

ALERTS: Final = (
    Alert(
        name="BladeOperatorNoLeader",
        expression="sum by (namespace) (blade_operator_leader) < 1 or absent(blade_operator_leader)",
        wait="5m",
        severity="critical",
        summary="No operator works",
        text="No pod of the operator holds the lease: services keep running, and nothing is repaired or changed.",
    ),
    Alert(
        name="BladeServiceNotReady",
        expression="max by (service_namespace, service_name) (blade_operator_service_ready) == 0",
        wait="15m",
        severity="critical",
        summary="{{ $labels.service_namespace }}/{{ $labels.service_name }} is not ready",
        text="The condition Ready of the LLMService has not been true for 15 minutes.",
    ),
    Alert(
        name="BladeOperatorReconcileFailing",
        expression="sum by (namespace) (increase(blade_operator_reconcile_failures_total[10m])) > 5",
        wait="10m",
        severity="warning",
        summary="Reconciles fail",
        text="{{ $value | humanize }} reconciles of the last ten minutes ended in an error.",
    ),
    Alert(
        name="BladeOperatorSlow",
        expression=(
            "histogram_quantile(0.99, sum by (le, namespace) (rate(blade_operator_reconcile_seconds_bucket[10m]))) > 5"
        ),
        wait="15m",
        severity="warning",
        summary="Reconciles are slow",
        text="One reconcile of a hundred takes {{ $value | humanizeDuration }} or longer.",
    ),
    Alert(
        name="BladeOperatorQueueLong",
        expression="max by (namespace) (blade_operator_queue_depth) > 50",
        wait="10m",
        severity="warning",
        summary="The operator does not keep up",
        text="{{ $value }} services wait for a worker.",
    ),
    Alert(
        name="BladeOperatorDecisionsFailing",
        expression="sum by (namespace) (increase(blade_operator_decision_failures_total[10m])) > 5",
        wait="5m",
        severity="warning",
        summary="Scaling decisions fail",
        text="{{ $value | humanize }} decisions of the last ten minutes ended in an error: numbers of engines stay.",
    ),
    Alert(
        name="BladeOperatorApiErrors",
        expression=(
            'sum by (namespace) (rate(blade_operator_api_requests_total{code=~"0|5.."}[5m])) '
            "/ sum by (namespace) (rate(blade_operator_api_requests_total[5m])) > 0.05"
        ),
        wait="10m",
        severity="warning",
        summary="The API server fails the operator",
        text="{{ $value | humanizePercentage }} of its requests got no response or a server error.",
    ),
    Alert(
        name="BladeOperatorWatchRestarts",
        expression="sum by (namespace, kind) (increase(blade_operator_watch_restarts_total[15m])) > 5",
        wait="0m",
        severity="warning",
        summary="The operator's watch of {{ $labels.kind }} keeps failing",
        text="It was started anew {{ $value | humanize }} times within 15 minutes.",
    ),
    Alert(
        name="BladeOperatorKindSkipped",
        expression="max by (namespace, exported_namespace, kind) (blade_operator_skipped) == 1",
        wait="15m",
        severity="warning",
        summary="The operator may not list {{ $labels.kind }}",
        text="It skips {{ $labels.kind }} in namespace '{{ $labels.exported_namespace }}' (empty: in all of them).",
    ),
    Alert(
        name="BladeOperatorUnauthorized",
        expression="sum by (namespace) (increase(blade_operator_engine_unauthorized_total[10m])) > 0",
        wait="10m",
        severity="warning",
        summary="An engine refuses the operator",
        text="{{ $value | humanize }} requests of the operator were refused for their internal token.",
    ),
)
