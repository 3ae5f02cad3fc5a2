"""The engines an autoscaler counts on, and how long they take to start."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from blade_operator.model.objects import Object
from blade_operator.reconcile.scaling.limits import engine_pods, seconds, start_seconds
from blade_operator.scaling.signals import Engines
from blade_protocol.labels import DRAINING_SINCE, ROLE

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def pod(age: float, start: float | None = None, restarts: int = 0, role: str = "engine", **metadata: Any) -> Object:
    """Made ``age`` seconds ago and ready ``start`` seconds after that; None: it is not."""
    created = NOW - timedelta(seconds=age)
    ready = {"type": "Ready", "status": "False" if start is None else "True"}
    if start is not None:
        ready["lastTransitionTime"] = (created + timedelta(seconds=start)).isoformat()
    return {
        "metadata": {"name": "e", "labels": {ROLE: role}, "creationTimestamp": created.isoformat(), **metadata},
        "spec": {},
        "status": {"conditions": [ready], "containerStatuses": [{"name": "engine", "restartCount": restarts}]},
    }


def test_the_time_to_start_is_the_median_of_engines_that_became_ready_once() -> None:
    pods = [pod(900, 40), pod(900, 50), pod(900, 300), pod(900, 800, restarts=1), pod(10), pod(900, 1, role="router")]
    assert start_seconds(pods) == 50
    assert start_seconds([pod(10)]) is None
    assert start_seconds([pod(90_000, 80_000)]) == 1800


def test_engines_count_while_they_may_still_become_ready() -> None:
    leaving = pod(900, 40, annotations={DRAINING_SINCE: NOW.isoformat()})
    gone = pod(900, 40, deletionTimestamp=NOW.isoformat())
    pods = [pod(900, 40), pod(900, 40), leaving, gone, pod(30), pod(601), pod(30, role="router")]
    engines, at = engine_pods(pods), NOW.timestamp()
    assert engines.expected(5, 40.0, at) == Engines(ready=2, starting=1)
    assert engines.expected(8, 40.0, at) == Engines(ready=2, starting=4)  # three are yet to be made
    assert engines.expected(5, 400.0, at) == Engines(ready=2, starting=2)


@pytest.mark.parametrize(("latency", "expected"), [("500ms", 0.5), ("2s", 2.0), ("40ms", 0.04), (None, None)])
def test_latencies(latency: str | None, expected: float | None) -> None:
    assert seconds(latency) == expected
