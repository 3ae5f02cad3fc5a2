"""A service in a `MiniCluster` under a load that the test sets, whose routers say what they would."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from blade_operator.model import pods as podutil
from blade_operator.model.plan import Plan
from blade_operator.reconcile.scaling.look import PERIOD
from blade_protocol.signals import Percentiles, RouterSignals, ServiceSignals
from operator_support.mini_cluster import MiniCluster, service

CONCURRENCY: dict[str, Any] = {"mode": "Concurrency", "min": 1, "max": 8, "target": {"concurrency": 8}}
SLO: dict[str, Any] = {"mode": "SLO", "min": 1, "max": 8, "slo": {"ttft": "500ms", "tpot": "40ms"}}


class Scaled(MiniCluster):
    """Its routers report ``running`` and so on, which tests set."""

    def __init__(self, scaling: dict[str, Any], **spec: Any) -> None:
        super().__init__(service({"scaling": scaling, **spec}))
        self.running = self.queued = 0
        self.arrivals = 0.0
        self.ttft = self.tpot = Percentiles()
        self.late = 0.0
        """Seconds that the routers' clocks are behind."""
        self.silent: set[str] = set()
        """Routers that do not respond."""
        self.statuses = 0
        """How often a status was written."""
        self.prompt = self.completion = 0
        self.requests = 0.0
        self.asked_at = 0.0
        self.signals = self._signals
        self.bring_up()

    def bring_up(self) -> None:
        """Pods are made and become ready, terminating ones end; nobody looks at the load meanwhile."""
        for _ in range(5):
            plan = self.reconcile()
            self.run_controllers()
            self.remove_terminating_pods()
            for pod in self.pods:
                self.become_ready(pod)
            if not (plan.apply or plan.delete or plan.actions or plan.status):
                break

    def reconcile(self) -> Plan:
        plan = super().reconcile()
        self.statuses += plan.status is not None
        return plan

    def step(self, seconds: float = PERIOD) -> Plan:
        """``seconds`` later a decision, and what follows at once from it; pods become ready."""
        self.now += timedelta(seconds=seconds - 2)
        plan = self.reconcile()
        if plan.apply or plan.delete or plan.actions or plan.status:
            self.bring_up()
        else:
            self.now += timedelta(seconds=1)
        return plan

    def steps(self, seconds: float, every: float = PERIOD) -> None:
        """So long, with a decision ``every`` so many seconds."""
        for _ in range(round(seconds / every)):
            self.step(every)

    def restart_operator(self, away: float = 0.0) -> None:
        """A new process, ``away`` seconds later, which knows what is in the objects."""
        self.autoscaler = None
        self.now += timedelta(seconds=away)

    @property
    def scaling(self) -> dict[str, Any]:
        found: dict[str, Any] = self.service["status"].get("scaling", {})
        return found

    @property
    def condition(self) -> tuple[str, str]:
        [found] = [each for each in self.service["status"]["conditions"] if each["type"] == "Scaling"]
        return found["status"], found["reason"]

    @property
    def message(self) -> str:
        [found] = [each for each in self.service["status"]["conditions"] if each["type"] == "Scaling"]
        return str(found["message"])

    @property
    def replicas(self) -> int:
        """Of all Deployments of engines together."""
        return sum(
            obj["spec"]["replicas"]
            for ref, obj in self.objects.items()
            if ref.kind == "Deployment" and "-engine-" in ref.name
        )

    def _signals(self, at: float) -> Mapping[str, RouterSignals]:
        routers = [pod["metadata"]["name"] for pod in self.pods if podutil.role(pod) == "router"]
        share = 1 / max(1, len(routers))
        passed, self.asked_at = at - self.asked_at, at
        self.requests += self.arrivals * max(0.0, passed) if math.isfinite(self.arrivals) else 0.0
        self.completion += 10
        self.prompt += 10
        return {
            name: RouterSignals(
                started=0.0,
                time=at - self.late,
                arrivals=int(self.requests * share),
                arrivals_per_second=self.arrivals * share,
                prompt_tokens=self.prompt,
                completion_tokens=self.completion,
                ttft_seconds=self.ttft,
                tpot_seconds=self.tpot,
                services=(
                    ServiceSignals(
                        service="qwen", running=round(self.running * share), queued_requests=round(self.queued * share)
                    ),
                ),
            )
            for name in routers
            if name not in self.silent
        }
