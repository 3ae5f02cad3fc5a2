"""What a service asks of its autoscaler."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast the number of engines may change: by the larger of both in ``seconds``."""

    engines: int
    percent: int
    seconds: float = 60.0

    def step(self, engines: int) -> int:
        """Engines by which so many may change within :attr:`seconds`; at least one."""
        return max(1, self.engines, engines * self.percent // 100)


@dataclass(frozen=True, slots=True)
class Targets:
    """Latencies that are promised, in seconds; None: none is."""

    ttft: float | None = None
    tpot: float | None = None
    share: float = 0.95
    """Of the requests, that is to be within both: the percentile of the latencies that are measured."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A service's, at one time: bounds are those of the schedule and budget that hold now."""

    least: int
    most: int
    concurrency: float | None = None
    """Requests an engine is to have; None: there are targets instead."""
    targets: Targets = field(default_factory=Targets)
    up: Speed = Speed(engines=4, percent=100, seconds=15.0)
    down: Speed = Speed(engines=1, percent=25)
    down_delay: float = 120.0
    """Seconds for which fewer engines must have been enough."""
    idle_to_zero: float | None = None
    """Seconds without a request after which there is no engine; None: there always is one."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a service may have at most."""

    engines: int
    field: str
    """Of ``spec.scaling``, that says so."""
    amount: str
    """As it stands there."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds that hold now."""

    policy: Policy
    budget: Budget | None
    """The tightest one; None: there is none."""
    problem: tuple[str, str] | None = None
    """Reason and message for the condition, when something cannot be kept to."""

    def bound(self, engines: int) -> int:
        """``engines``, within the bounds. None at all stays so where that is allowed."""
        return min(max(engines, self.policy.least), self.policy.most)
