"""A service in a `MiniCluster` with a warm pool."""

from __future__ import annotations

from typing import Any

import msgspec

from blade_operator.model import pods as podutil
from blade_operator.model.plan import Plan
from operator_support.scaled import CONCURRENCY
from operator_support.sleepy import Sleepy

POOLED: dict[str, Any] = CONCURRENCY | {"standby": 1}


class Pooled(Sleepy):
    """Its engines are counted by where they stand."""

    def __init__(self, scaling: dict[str, Any] | None = None, **spec: Any) -> None:
        self.fewest_serving = 99
        super().__init__(POOLED if scaling is None else scaling, **spec)
        self.bring_up()

    @property
    def standing_by(self) -> list[str]:
        """Names of the engines that are on standby, as they say themselves."""
        return sorted(name for pod in self._active if self.engines[name := pod["metadata"]["name"]].standby)

    @property
    def serving(self) -> list[str]:
        """Names of the engines that would answer a request."""
        return sorted(
            pod["metadata"]["name"]
            for pod in self._active
            if podutil.is_ready(pod) and not self.engines[pod["metadata"]["name"]].draining
        )

    @property
    def state(self) -> tuple[int, int, int]:
        """Engines that serve, that stand by, and that the workloads are to have."""
        return len(self.serving), len(self.standing_by), self.replicas

    @property
    def _active(self) -> list[dict[str, Any]]:
        return [pod for pod in self.engine_pods if podutil.is_active(pod) and pod["metadata"]["name"] in self.engines]

    def reconcile(self) -> Plan:
        plan = super().reconcile()
        self.fewest_serving = min(self.fewest_serving, len(self.serving))
        return plan

    def settle(self) -> None:
        """All that follows without another decision about the load."""
        for _ in range(40):
            before = self.state, [pod["metadata"]["name"] for pod in self.engine_pods]
            self.bring_up()
            if before == (self.state, [pod["metadata"]["name"] for pod in self.engine_pods]):
                return
        raise AssertionError(f"not settled: {self.state}")

    def decide(self, engines: int) -> None:
        """So many engines are to serve from now on, by the bounds; and what follows."""
        self.bound(engines)
        self.settle()

    def bound(self, engines: int) -> None:
        """The same; nothing follows yet."""
        self.edit(scaling=self.service["spec"]["scaling"] | {"min": engines, "max": engines})

    def use(self, name: str, *, running: int = 0, cached: int = 0) -> None:
        """What the engine of that name says of its use."""
        self.engines[name] = msgspec.structs.replace(self.engines[name], running=running, cached_tokens_total=cached)

    def messages(self, reason: str) -> list[str]:
        """Of the Events with this reason."""
        return [event.message for event in self.events if event.reason == reason]
