"""The states that the web UI is shown in: each scenario is a service with its traffic, as one router reports them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from ui_support import services
from ui_support.traffic import Load, Traffic

Object = dict[str, Any]


class Scenario:
    """One simulated router: ``snapshot()`` once, then ``update()`` for every second.

    Args:
        now: unix time at which it begins, with five minutes of traffic behind it.
        load: the traffic.
        service: the service as the operator reported it; None for a router that runs alone.
        keyed: whether the router has API keys.
        key: name of the viewer's key.
    """

    def __init__(self, now: float, load: Load, service: Object | None, *, keyed: bool = False, key: str | None = None):
        self.traffic = Traffic(load)
        self._service = services.public(service) if load.own is not None and service is not None else service
        self._now = now
        own = load.own is not None
        self._router = {
            "version": "0.0.0", "started": now - 5400.0, "policy": "auto", "workers": 1,
            "replicas": 1 if service is None else 2,
            "keyed": keyed, "scope": "own" if own else "all", "key": key, "models": _models(service),
        }  # fmt: skip
        self.traffic.begin(now)

    def snapshot(self) -> Object:
        """The whole State."""
        return copy.deepcopy(
            {
                "time": self._now,
                "router": self._router,
                "service": self._service,
                "endpoints": self._endpoints(),
                "traffic": {"interval": 1, "points": list(self.traffic.points)},
                "requests": list(self.traffic.rows.values()),
            }
        )

    def update(self) -> Object:
        """One second later: the members that changed, new points, and new or changed requests."""
        self._now += 1
        changed = self.traffic.tick(self._now)
        held = {
            "time": self._now,
            "endpoints": self._endpoints(),
            "traffic": {"interval": 1, "points": [self.traffic.points[-1]]},
        }
        if changed:
            held["requests"] = [row for name, row in self.traffic.rows.items() if name in changed]
        if self._service is not None and int(self._now) % 10 == 0:
            self._service["reported"] = self._now
            held["service"] = self._service
        return copy.deepcopy(held)

    def _endpoints(self) -> list[Object]:
        endpoints = self.traffic.endpoints()
        return [services.public_endpoint(each) for each in endpoints] if self._router["scope"] == "own" else endpoints


def _models(service: Object | None) -> list[Object]:
    base = [{"id": "qwen3-8b", "kind": "base", "parent": None}]
    if service is None:
        return base
    return [
        *base,
        {"id": "qwen", "kind": "alias", "parent": "qwen3-8b"},
        {"id": "sql", "kind": "adapter", "parent": "qwen3-8b"},
        {"id": "support", "kind": "adapter", "parent": "qwen3-8b"},
    ]


def _engines(count: int) -> tuple[str, ...]:
    return tuple(services.engine_name(index) for index in range(count))


def calm(now: float) -> Scenario:
    """Four engines that serve."""
    return Scenario(now, Load(_engines(4)), services.service(now))


def canary(now: float) -> Scenario:
    """A canary at its second step: two of four engines run another revision, with a quarter of the requests."""
    revisions = (services.STABLE, services.STABLE, services.CANARY, services.CANARY)
    engines = tuple(services.engine_name(index, revision) for index, revision in enumerate(revisions))
    load = Load(engines, revisions=revisions, weights=(75, 75, 25, 25))
    return Scenario(now, load, services.with_canary(services.service(now), now))


def failing(now: float) -> Scenario:
    """One of four engines in a crash loop, with the last line it left."""
    return Scenario(now, Load(_engines(4), failing=3), services.with_failure(services.service(now), now))


def big(now: float) -> Scenario:
    """64 engines and 2,000 streams, of ten keys."""
    keys = tuple(f"team-{letter}" for letter in "abcdefghij")
    load = Load(_engines(64), streams=2000, duration=25.0, keys=keys)
    return Scenario(now, load, services.service(now, engines=64))


def bare(now: float) -> Scenario:
    """A router that runs alone: no operator, no keys, two engines on CPUs with little load."""
    engines = ("http://127.0.0.1:8081", "http://127.0.0.1:8082")
    load = Load(engines, streams=2, duration=4.0, keys=("",), models=("qwen3-8b",), plain=True)
    return Scenario(now, load, None)


def own(now: float) -> Scenario:
    """A viewer whose key sees its own requests alone, and of service and engines what clients may know."""
    load = Load(_engines(4), streams=6, keys=("team-b",), own="team-b")
    return Scenario(now, load, services.service(now), keyed=True, key="team-b")


SCENARIOS: dict[str, Callable[[float], Scenario]] = {
    made.__name__: made for made in (calm, canary, failing, big, bare, own)
}
"""What ``--scenario`` takes."""
