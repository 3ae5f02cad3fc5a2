"""A fake cluster whose routers count what their configuration lets them: canaries."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from datetime import timedelta
from typing import Any

from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object, Ref
from blade_operator.model.observed import Observed
from blade_operator.model.plan import Plan
from blade_protocol.labels import ROLE_ROUTER
from blade_protocol.signals import Differences, RevisionSignals, RouterSignals, ShadowSignals
from operator_support.mini_cluster import MiniCluster

CANARY = {"steps": [5, 25, 50], "interval": "60s", "minRequests": 100}


class Counted(MiniCluster):
    """Its routers get a hundred requests before each reconcile, and split them as they are configured."""

    def __init__(self, obj: Object) -> None:
        super().__init__(obj)
        self.bad: dict[str, float] = {}
        """By revision, the share of its requests that fail."""
        self.slow: dict[str, float] = {}
        self.silent = False
        self.counts: dict[str, RevisionSignals] = {}
        self.same = 0.9
        """The share of greedy requests with the same text."""
        self.knows_shadows = True
        self.copies: ShadowSignals | None = None

    @property
    def weights(self) -> dict[str, float]:
        config = self.objects[Ref("ConfigMap", "team", "qwen-router")]["data"]["router.json"]
        weights: dict[str, float] = json.loads(config).get("canary", {})
        return weights

    @property
    def shadow(self) -> dict[str, Any] | None:
        """What routers are to copy."""
        config = self.objects[Ref("ConfigMap", "team", "qwen-router")]["data"]["router.json"]
        found: dict[str, Any] | None = json.loads(config).get("shadow")
        return found

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.service["status"].get("canary", {})
        return found

    def request(self, number: int = 100) -> None:
        """Requests arrive."""
        if {name: each.weight for name, each in self.counts.items()} != self.weights:
            self.counts = {name: RevisionSignals(revision=name, weight=weight) for name, weight in self.weights.items()}
        for name, each in self.counts.items():
            requests = each.requests + int(number * each.weight / 100)
            mean = math.log(self.slow.get(name, 1.0))
            batches = requests // 8
            self.counts[name] = RevisionSignals(
                revision=name,
                weight=each.weight,
                requests=requests,
                errors=int(requests * self.bad.get(name, 0.0)),
                ttft=Differences(batches=batches, total=mean * batches, squares=batches * (mean * mean + 0.04)),
            )
        self.copy(number)

    def copy(self, number: int) -> None:
        """Some of the requests are copied."""
        if self.shadow is None:
            self.copies = None
            return
        name = self.shadow["revision"]
        if self.copies is None or self.copies.revision != name:
            self.copies = ShadowSignals(revision=name)
        copied = self.copies.sent + int(number * self.shadow["share"] / 100)
        mean, batches = math.log(self.slow.get(name, 1.0)), copied // 8
        self.copies = ShadowSignals(
            revision=name,
            sent=copied,
            copies=RevisionSignals(
                revision=name,
                requests=copied,
                errors=int(copied * self.bad.get(name, 0.0)),
                ttft=Differences(batches=batches, total=mean * batches, squares=batches * (mean * mean + 0.04)),
            ),
            originals=RevisionSignals(revision="", requests=copied),
            same=int(copied * self.same),
            different=copied - int(copied * self.same),
        )

    def observed(self) -> Observed:
        routers = [pod["metadata"]["name"] for pod in self.pods if podutil.role(pod) == ROLE_ROUTER]
        shadows = (self.copies,) if self.copies is not None and self.knows_shadows else ()
        signals = RouterSignals(started=0.0, time=0.0, revisions=tuple(self.counts.values()), shadows=shadows)
        found = {} if self.silent else dict.fromkeys(routers[:1], signals)
        return dataclasses.replace(super().observed(), signals=found)

    def turn(self, seconds: float = 20.0, ready: bool = True) -> Plan:
        """Some time passes, with requests; the operator reconciles and the controllers act."""
        self.now += timedelta(seconds=seconds)
        if Ref("ConfigMap", "team", "qwen-router") in self.objects:
            self.request()
        plan = self.reconcile()
        self.run_controllers()
        self.remove_terminating_pods()
        for pod in self.pods:
            if ready or podutil.revision(pod) != self.service["status"]["revision"]["current"]:
                self.become_ready(pod)
        return plan

    def ready(self, revision: str) -> int:
        return sum(podutil.revision(pod) == revision and podutil.is_ready(pod) for pod in self.engine_pods)

    def condition(self, kind: str) -> dict[str, Any]:
        return next((each for each in self.service["status"]["conditions"] if each["type"] == kind), {})

    def current(self) -> str:
        return str(self.service["status"]["revision"]["current"])


def change(cluster: Counted, number: int = 8) -> tuple[str, str]:
    """A new revision; returns the old and the new one."""
    old = cluster.current()
    cluster.edit(engine={"maxNumSeqs": number})
    cluster.reconcile()
    return old, cluster.current()


def run_until(cluster: Counted, phase: str, turns: int = 80) -> None:
    for _ in range(turns):
        if cluster.status.get("phase") == phase:
            return
        cluster.turn()
    raise AssertionError(f"never {phase}: {cluster.status}")


def run_losing_statuses(cluster: Counted) -> set[tuple[str, int]]:
    """Until the canary is over, as operators that are killed before they write a status: the first one of each phase
    and weight is lost. Returns these."""
    lost: set[tuple[str, int]] = set()
    for _ in range(200):
        before = copy.deepcopy(cluster.service["status"])
        cluster.turn()
        now = cluster.status.get("phase", ""), cluster.status.get("weight", 0)
        if cluster.status != before.get("canary", {}) and now not in lost:
            lost.add(now)
            cluster.service["status"] = before
        if not cluster.status:
            break
    return lost


def lose_abort(cluster: Counted) -> str:
    """Until the canary is aborted, of which the status is lost then. Returns the reason that it had."""
    for _ in range(80):
        before = copy.deepcopy(cluster.service["status"])
        cluster.turn()
        if cluster.status.get("phase") == "Aborted":
            break
    reason = str(cluster.condition("RolloutAborted")["message"])
    cluster.service["status"] = before
    return reason
