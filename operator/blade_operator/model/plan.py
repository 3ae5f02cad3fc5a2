"""The output of reconcile: everything to do now for one service, and when to reconcile again. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from blade_operator.model.objects import Object, Ref
from blade_operator.model.scale_target import ScaleTarget
from blade_operator.scaling.autoscaler import Autoscaler


@dataclass(frozen=True, slots=True)
class EventRecord:
    """A Kubernetes Event about the service, one for each transition."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Prune:
    """Items of lists that somebody added to an object: an apply leaves what others own, so they are removed."""

    ref: Ref
    paths: tuple[str, ...]
    """JSON pointers, in the order in which they are removed one after the other."""


@dataclass(frozen=True, slots=True)
class DrainPod:
    """Drain the engine in this pod: it accepts no new request; or take it back in. Idempotent."""

    pod: str
    draining: bool = True
    standby: bool = False
    """It also gives its KV cache back, and stays."""


@dataclass(frozen=True, slots=True)
class LoadAdapter:
    """Load this LoRA adapter into the engine in this pod, or replace the one of its name. Idempotent."""

    pod: str
    name: str
    path: str
    pinned: bool = False
    preload: bool = True


@dataclass(frozen=True, slots=True)
class UnloadAdapter:
    """Unload this LoRA adapter from the engine in this pod; requests that have begun end normally. Idempotent."""

    pod: str
    name: str


Action = DrainPod | LoadAdapter | UnloadAdapter


@dataclass(frozen=True, slots=True)
class Plan:
    """Objects to apply and delete, actions, Events and the status. An empty plan means that all is as declared."""

    claim: Object | None = None
    """A status that says which installation owns the service: written first, and only if the status is still the one
    that was observed; else the rest of the plan is void."""
    apply: list[Object] = field(default_factory=list)
    """The objects that differ from what was observed. Of a pod only the annotations are applied."""
    replace: list[Object] = field(default_factory=list)
    """Secrets whose content is of another root key: applied, a Secret that is there stays as it is."""
    prune: list[Prune] = field(default_factory=list)
    delete: list[Ref] = field(default_factory=list)
    status: Object | None = None
    """The whole new status, or None when it would not change anything worth a write."""
    lora_adapters: dict[str, Object | None] = field(default_factory=dict)
    """What the service has to say of LoRAAdapters, by name, where it is not what they say yet; None: nothing more."""
    actions: list[Action] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)
    wakes_on_demand: bool = False
    """The service sleeps: it is to be reconciled as soon as one of its routers holds a request."""
    autoscaler: Autoscaler | None = None
    """To be remembered until the next reconcile, whatever becomes of the rest; None: the service is not scaled."""
    scale_target: ScaleTarget | None = None
    """What the decision loop is to decide on until the next reconcile; None: nothing."""
    requeue_after: float | None = None
    """Seconds until the next reconcile if nothing changes before; None leaves it to the resync."""
