"""A service gets engines by its load and gives them back, and no request is lost meanwhile."""

from __future__ import annotations

from typing import Any

from e2e.support.load import Load, LongStream
from e2e.support.service import Service
from e2e.tests.conftest import DEMO

SCALING: dict[str, Any] = {
    "mode": "Concurrency", "min": 1, "max": 2, "target": {"concurrency": 3}, "behavior": {"downDelay": "10s"}
}  # fmt: skip
STREAM = 400
"""Tokens of the streams that are open when the second engine is to go."""


def test_it_scales_by_load_and_back_and_loses_none(demo: Service) -> None:
    demo.apply(**DEMO, scaling=SCALING)
    with demo.reach() as url:
        with Load(url, users=6, pause=0.0) as busy:
            demo.until(lambda: decided(demo) == 2, "decided to have two engines")
            demo.wait_until_converged(2)
            served = len(busy.good)
            busy.more(30)
            pods = {result.endpoint for result in busy.good[served:]}
            streams = [LongStream(url, STREAM).first() for _ in range(4)]
        with Load(url, users=1) as idle:
            demo.until(lambda: decided(demo) == 1, "decided to have one engine", 120)
            demo.wait_until_converged(1)
            idle.more()
        ended = [stream.wait() for stream in streams]
    assert busy.bad == idle.bad == []
    assert [(each.outcome, each.tokens) for each in ended] == [("ok", STREAM)] * len(ended)
    assert len(pods) == 2
    changes = demo.status()["scaling"]["changes"]
    assert [change.split(" ", 1)[1].split(":")[0] for change in changes] == ["1 -> 2", "2 -> 1"]


def decided(demo: Service) -> int:
    """Engines that the operator wants."""
    return int((demo.status().get("scaling") or {}).get("replicas", 0))
