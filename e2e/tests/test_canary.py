"""A new revision gets a share of real requests: one that is slower is aborted, an equal one replaces the stable one."""

from __future__ import annotations

import json
from typing import Any

from e2e.support.load import Load
from e2e.support.service import Service, names

CANARY = {"steps": [40], "interval": "20s", "minRequests": 100, "latencyTolerance": 50}
MINUTES = 600.0
"""Seconds that a canary may take on a small node: what it measures is its own slowness."""


def patch(service: Service, **spec: Any) -> None:
    service.kubectl("patch", "llm", service.name, "--type=merge", "-p", json.dumps({"spec": spec}))


def phase(service: Service) -> str:
    return str((service.status().get("canary") or {}).get("phase", ""))


def test_a_slow_canary_is_aborted_and_an_equal_one_replaces_the_stable_one(demo: Service) -> None:
    stable, pods = demo.status()["revision"]["current"], names(demo.pods("engine"))
    limits = {"memory": "2Gi", "cpu": "300m"}
    patch(demo, rollout={"canary": CANARY})
    try:
        with demo.reach() as url, Load(url) as load:
            patch(demo, engine={"resources": {"limits": limits}})
            demo.until(lambda: phase(demo) == "Aborted", "without its slow canary", MINUTES)
            reason = demo.condition("RolloutAborted")["message"]
            slow = demo.status()["canary"]["revision"]
            assert "times as long" in reason
            demo.until(lambda: names(demo.pods("engine")) == pods, "with the engines of before", 180)
            assert demo.status()["canary"]["stable"] == stable
            load.more()

            patch(demo, engine={"resources": {"limits": {"cpu": None}}, "maxNumSeqs": 7})
            demo.until(lambda: demo.status()["revision"]["current"] not in (stable, slow), "at another revision")
            demo.until(lambda: phase(demo) == "Running", "with a canary that has a share", 180)
            demo.wait_until_converged(timeout=MINUTES)
            assert demo.condition("RolloutAborted") == {}
            load.more()
        assert load.bad == []
    finally:
        patch(demo, rollout={"canary": None}, engine={"resources": {"limits": {"cpu": None}}, "maxNumSeqs": 8})
        demo.wait_until_converged()
