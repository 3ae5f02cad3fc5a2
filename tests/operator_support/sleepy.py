"""A service in a `MiniCluster` that sleeps at zero engines, whose routers hold what the test says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from blade_operator.model import pods as podutil
from blade_protocol.signals import RouterSignals
from operator_support.scaled import CONCURRENCY, Scaled
from operator_support.status import SCHEMA, condition

IDLE_TO_ZERO = 60
SLEEPY: dict[str, Any] = CONCURRENCY | {"min": 0, "idleToZero": f"{IDLE_TO_ZERO}s"}


class Sleepy(Scaled):
    """Its routers report how long they have been idle, and what each of them holds."""

    def __init__(self, scaling: dict[str, Any] | None = None, **spec: Any) -> None:
        self.idle: dict[str, float] = {}
        """Seconds by router; of others no time at all."""
        self.held: dict[str, int] = {}
        super().__init__(SLEEPY if scaling is None else scaling, **spec)

    @property
    def routers(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.pods if podutil.role(pod) == "router"]

    def rest(self, seconds: float = IDLE_TO_ZERO) -> None:
        """No router has had a request for so long."""
        self.idle = dict.fromkeys(self.routers, seconds)
        self.held = {}

    def demand(self, count: int = 1) -> None:
        """A router holds so many requests."""
        name = self.routers[0]
        self.held, self.idle[name] = {name: count}, 0.0

    def fall_asleep(self) -> None:
        self.rest()
        self.step()
        assert self.replicas == 0
        assert not self.engine_pods

    def condition(self, kind: str) -> tuple[str, str, str]:  # type: ignore[override]
        SCHEMA.validate(self.service["status"])
        return condition(self.service["status"], kind)

    @property
    def phase(self) -> str:
        return str(self.service["status"]["phase"])

    def reasons(self, *wanted: str) -> list[str]:
        """Reasons of all Events so far, as far as they are wanted."""
        return [event.reason for event in self.events if event.reason in wanted]

    def _signals(self, at: float) -> Mapping[str, RouterSignals]:
        found = {}
        for name, each in super()._signals(at).items():
            held = self.held.get(name, 0)
            [service] = each.services
            services = (msgspec.structs.replace(service, held_requests=held),)
            found[name] = msgspec.structs.replace(each, idle_seconds=self.idle.get(name, 0.0), services=services)
        return found
