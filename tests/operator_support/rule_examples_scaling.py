"""Values of ``spec.scaling`` that keep its rules, and that break one: the field of the rule, and the value."""

from __future__ import annotations

from typing import Any

_FIELD = "spec.scaling"
_TARGET = {"concurrency": 8}
_SLO = {"ttft": "500ms"}

IDLE_TO_ZERO: dict[str, Any] = {"mode": "SLO", "min": 0, "max": 4, "slo": _SLO, "idleToZero": "10m"}

SCALING: tuple[tuple[str, dict[str, Any]], ...] = (
    ("", {}),
    ("", {"mode": "Fixed", "min": 2}),
    ("", {"mode": "External", "max": 4}),
    ("", {"mode": "Concurrency", "max": 4, "target": _TARGET}),
    ("", {"mode": "SLO", "min": 2, "max": 2, "slo": {"ttft": "2s", "tpot": "40ms", "percentile": 99}}),
    ("", {"mode": "Advisory", "max": 4, "slo": _SLO}),
    ("", {"mode": "Advisory", "max": 4, "target": _TARGET}),
    ("", {"mode": "SLO", "min": 0, "max": 4, "slo": _SLO, "idleToZero": "10s"}),
    ("", {"mode": "SLO", "max": 4, "slo": _SLO, "schedules": [{"cron": "0 8 * * 1-5", "duration": "10h", "min": 2}]}),
    ("", {"mode": "Concurrency", "max": 4, "target": _TARGET, "standby": 1}),
    (f"{_FIELD}.max", {"mode": "Concurrency", "target": _TARGET}),
    (f"{_FIELD}.max", {"mode": "SLO", "min": 5, "max": 4, "slo": _SLO}),
    (f"{_FIELD}.max", {"min": 2, "max": 1}),
    (f"{_FIELD}.mode", {"mode": "SLO", "max": 4, "target": _TARGET}),
    (f"{_FIELD}.mode", {"mode": "Concurrency", "max": 4, "slo": _SLO}),
    (f"{_FIELD}.mode", {"mode": "Advisory", "max": 4}),
    (f"{_FIELD}.idleToZero", {"mode": "SLO", "min": 0, "max": 4, "slo": _SLO}),
    (f"{_FIELD}.idleToZero", {"mode": "SLO", "max": 4, "slo": _SLO, "idleToZero": "10m"}),
    (f"{_FIELD}.idleToZero", {"mode": "SLO", "min": 0, "max": 4, "slo": _SLO, "idleToZero": "9s"}),
)
