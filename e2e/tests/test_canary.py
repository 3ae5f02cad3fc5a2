"""A new revision gets a share of real requests, and as it is no worse it replaces the stable one."""

from __future__ import annotations

import json
from typing import Any

from e2e.support.load import Load
from e2e.support.service import Service

CANARY = {"steps": [40], "interval": "20s", "minRequests": 100, "latencyTolerance": 50}
MINUTES = 300.0
"""Seconds that a canary may take on a small node."""


def patch(service: Service, **spec: Any) -> None:
    service.kubectl("patch", "llm", service.name, "--type=merge", "-p", json.dumps({"spec": spec}))


def phase(service: Service) -> str:
    return str((service.status().get("canary") or {}).get("phase", ""))


def test_an_equal_canary_replaces_the_stable_one(demo: Service) -> None:
    stable = demo.status()["revision"]["current"]
    patch(demo, rollout={"canary": CANARY})
    try:
        with demo.reach() as url, Load(url) as load:
            patch(demo, engine={"maxNumSeqs": 7})
            demo.until(lambda: phase(demo) == "Running", "with a canary that has a share", 180)
            assert demo.status()["canary"]["stable"] == stable
            demo.wait_until_converged(timeout=MINUTES)
            assert demo.status()["revision"]["current"] != stable
            assert demo.condition("RolloutAborted") == {}
            load.more()
        assert load.bad == []
    finally:
        patch(demo, rollout={"canary": None}, engine={"maxNumSeqs": 8})
        demo.wait_until_converged()
