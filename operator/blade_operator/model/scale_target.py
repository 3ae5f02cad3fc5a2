"""A service that is scaled by load, as far as decisions depend on its objects: small enough to be kept of each.

What a reconcile saw stays true until something changes, and then there is another reconcile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from blade_operator.scaling.policy import Limits
from blade_operator.scaling.signals import Engines
from blade_operator.spec.scaling_fields import Scaling

_LEAST_PATIENCE: Final = 600.0
"""Seconds after which an engine that is not ready is not expected to be soon, at least."""
_PATIENCE: Final = 3.0
"""The same as a multiple of the time that engines take to start."""


@dataclass(frozen=True, slots=True)
class EnginePods:
    """The engines of a service, as far as their number depends on them."""

    active: int
    """Those that run or start, leaving ones included."""
    ready: int
    """Of those that stay."""
    starting: tuple[float, ...]
    """Of those that stay and are not ready, the Unix times at which they were made."""
    start_seconds: float | None
    """What those that are ready took to start; None: none is, or none says."""
    standby: int = 0
    """Size of the pool that stands by, or starts to, and is not counted here."""

    def expected(self, wanted: int, start_seconds: float, at: float) -> Engines:
        """Those that are ready, and those that start or are yet to be made. One that has taken far too long to start is
        neither: it may never be ready, and nothing waits for it."""
        patience = max(_LEAST_PATIENCE, _PATIENCE * start_seconds)
        young = sum(at - made < patience for made in self.starting)
        coming = young + max(0, wanted - self.active)
        return Engines(self.ready, min(coming, max(0, wanted - self.ready)) if self.standby else coming)


@dataclass(frozen=True, slots=True)
class ScaleTarget:
    """What is decided on, as the last reconcile of the service saw it."""

    uid: str
    generation: int
    scaling: Scaling
    replicas: int
    """``spec.replicas``."""
    gpus: int
    """Of one engine."""
    stored: int | None
    """Engines that the status says in a mode that acts; None: it does not say."""
    declared: int
    """Engines that the reconcile declared."""
    engines: EnginePods
    routers: frozenset[str]
    """Names of the pods that are ready."""

    def wanted(self, limits: Limits) -> int:
        """Engines that are to be there before a decision."""
        if self.scaling.mode == "Advisory":
            return self.replicas
        return limits.bound(self.replicas if self.stored is None else self.stored)
