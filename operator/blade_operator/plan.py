"""What reconcile answers: everything to do now for one service, and when to look again. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from blade_operator.objects import Object, Ref


@dataclass(frozen=True, slots=True)
class EventRecord:
    """A Kubernetes Event about the service: one per transition."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class DrainPod:
    """Ask the engine in this pod to take nothing new. Idempotent."""

    pod: str


Action = DrainPod


@dataclass(frozen=True, slots=True)
class Plan:
    """Apply, delete, write status, act. An empty plan means: everything is as declared."""

    apply: list[Object] = field(default_factory=list)
    """Only objects that differ from what was observed."""
    delete: list[Ref] = field(default_factory=list)
    status: Object | None = None
    """The whole new status, or None when it would not change anything worth a write."""
    actions: list[Action] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)
    requeue_after: float | None = None
    """Seconds until the next look without any change, or None."""
