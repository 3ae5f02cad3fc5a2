"""One service whose load drifts: its routers' signals, and what its objects become by what is decided on it."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from blade_operator.model.objects import Object
from blade_operator.model.observed import Observed
from blade_operator.reconcile.scaling.scale import Scaled, scale
from blade_operator.scaling.autoscaler import Autoscaler
from blade_operator.spec import apply_defaults, parse_service
from blade_protocol.labels import API_VERSION, KIND, NAME, ROLE, ROLE_ENGINE, ROLE_ROUTER
from blade_protocol.signals import Percentiles, RouterSignals, ServiceSignals

ROUTERS = 2
_DRIFT = 0.03
"""Share of its arrivals by which a load changes in a minute, at most; a random walk."""
SCALING = {"mode": "SLO", "min": 1, "max": 16, "slo": {"ttft": "500ms", "tpot": "40ms"}}


class Load:
    """A load that drifts by the minute and jitters from one look to the next."""

    def __init__(self, number: int, at: float) -> None:
        self._random = random.Random(number)
        self.arrivals = self._random.uniform(0.2, 6.0)
        self._tokens = self._requests = 0.0
        self._at = at

    def signals(self, at: float, engines: int) -> RouterSignals:
        """What each of the routers says at a time, later than the last one."""
        draw, passed = self._random, at - self._at
        self._at = at
        drift = _DRIFT * math.sqrt(max(0.0, passed) / 60)
        self.arrivals = max(0.1, self.arrivals * draw.uniform(1 - drift, 1 + drift))
        busy = min(0.95, self.arrivals / max(engines, 1) / 2)
        tpot, ttft = 0.02 / (1 - busy) * draw.uniform(0.95, 1.05), 0.1 / (1 - busy) * draw.uniform(0.9, 1.1)
        self._requests += self.arrivals * passed
        self._tokens += self.arrivals * 200 * passed
        return RouterSignals(
            started=0.0,
            time=at,
            arrivals=int(self._requests / ROUTERS),
            arrivals_per_second=self.arrivals / ROUTERS * draw.uniform(0.9, 1.1),
            prompt_tokens=int(self._tokens),
            completion_tokens=int(self._tokens),
            ttft_seconds=Percentiles(p50=ttft, p90=1.6 * ttft, p99=3 * ttft),
            tpot_seconds=Percentiles(p50=tpot, p90=1.2 * tpot, p99=1.5 * tpot),
            services=(ServiceSignals(service="s", running=int(self.arrivals * 4)),),
        )


class Service:
    """The objects of a service, and what reconciles write of its scaling."""

    def __init__(self, number: int) -> None:
        self.name = f"s{number:04}"
        self.writes = 0
        metadata = {"name": self.name, "namespace": "team", "uid": str(number), "generation": 1}
        spec = {"model": {"uri": "file:///m"}, "scaling": SCALING}
        obj = apply_defaults({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec})
        self._parsed = parse_service(obj)
        self.routers = tuple(pod(ROLE_ROUTER, f"{self.name}-router-{index}", self.name) for index in range(ROUTERS))
        self.observed = Observed(
            service=obj, pods=(*self.routers, pod(ROLE_ENGINE, f"{self.name}-engine-0", self.name))
        )

    @property
    def engines(self) -> int:
        """Those that there are."""
        return len(self.observed.pods) - ROUTERS

    def reconcile(
        self, autoscaler: Autoscaler | None, now: datetime, signals: Mapping[str, RouterSignals] | None = None
    ) -> Scaled:
        """The part of a reconcile that is about scaling; ``signals``: of a first one. Engines are ready at once."""
        observed = dataclasses.replace(
            self.observed, autoscaler=autoscaler, signals=signals or {}, signals_queried=signals is not None
        )
        found = scale(self._parsed, observed, now)
        assert found.judgement is not None
        condition = {"type": "Scaling", **dataclasses.asdict(found.judgement)}
        written: dict[str, Any] = {"scaling": found.status, "conditions": [condition]}
        service = self.observed.service
        if service.get("status") != written:
            self.writes += 1
            service = {**service, "status": written}
        engines = tuple(pod(ROLE_ENGINE, f"{self.name}-engine-{index}", self.name) for index in range(found.replicas))
        self.observed = dataclasses.replace(self.observed, service=service, pods=(*self.routers, *engines))
        return found


def pod(role: str, name: str, service: str, port: int = 0) -> Object:
    """A pod that is ready, on this machine."""
    ports = [{"name": "admin", "containerPort": port}]
    return {
        "metadata": {"name": name, "namespace": "team", "uid": name, "labels": {ROLE: role, NAME: service}},
        "spec": {"containers": [{"name": role, "ports": ports}]},
        "status": {
            "podIP": "127.0.0.1",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": role, "started": True}],
        },
    }
