"""The input of reconcile: the LLMService, its children as they are now, and the states of its engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from blade_operator.model.objects import Object, Ref
from blade_operator.scaling.autoscaler import Autoscaler
from blade_protocol.adapters import AdapterInfo
from blade_protocol.fetch import FetchProgress
from blade_protocol.signals import RouterSignals
from blade_protocol.state import EngineState


@dataclass(frozen=True, slots=True)
class Observed:
    """A consistent snapshot of one service. Its children are the objects labelled with its name."""

    service: Object
    deployments: tuple[Object, ...] = ()
    group_objects: tuple[Object, ...] = ()
    """A StatefulSet or a LeaderWorkerSet for each engine on several machines."""
    pods: tuple[Object, ...] = ()
    services: tuple[Object, ...] = ()
    config_maps: tuple[Object, ...] = ()
    revisions: tuple[Object, ...] = ()
    """ControllerRevisions, which hold the rendered pod template of each revision."""
    others: tuple[Object, ...] = ()
    """Further rendered kinds (PodDisruptionBudget, ServiceAccount …)."""
    lora_adapters: tuple[Object, ...] = ()
    """The LoRAAdapters of the service's namespace."""
    engines: Mapping[str, EngineState] = field(default_factory=dict)
    """State of each engine by pod name; a pod that did not respond is absent (unknown, not failed)."""
    downloads: Mapping[str, FetchProgress] = field(default_factory=dict)
    """Progress by name of the pod whose model is being downloaded; absent when the pod did not respond."""
    adapters: Mapping[str, tuple[AdapterInfo, ...]] = field(default_factory=dict)
    """The LoRA adapters that each engine has, by pod name; absent when the pod did not respond."""
    refused_adapters: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Why an engine refused to load an adapter, by the names of the pod and the adapter."""
    unauthorized: frozenset[str] = frozenset()
    """Names of the pods that do not accept the operator's internal token."""
    signals: Mapping[str, RouterSignals] = field(default_factory=dict)
    """What each router measured, by pod name, if :func:`needs_signals`; absent when the pod did not respond."""
    signals_queried: bool = True
    """Whether routers were asked for them at all; else nothing is decided on the number of engines."""
    autoscaler: Autoscaler | None = None
    """What is remembered of scaling the service; None: this process has not looked at it yet."""
    has_leader_worker_sets: bool = False
    """The cluster has that kind, and the operator may list it."""
    abandoned: bool = False
    """The installation of the operator that claimed the service is gone."""
    rejected: Mapping[Ref, str] = field(default_factory=dict)
    """Objects that the cluster rejects as they are rendered, each with the reason it gave."""


def needs_signals(service: Object) -> bool:
    """Whether decisions about this service need its routers' signals: it is scaled by load, has a canary, or prices.
    The spec may be of any form: a cluster without rules stores what it gets."""
    priced = bool(_part(_part(service, "spec"), "pricing"))
    return is_scaled_by_load(service) or has_canary(service) or priced


def is_scaled_by_load(service: Object) -> bool:
    """Whether the operator decides on the number of engines; the spec may be of any form."""
    return _part(_part(service, "spec"), "scaling").get("mode", "Fixed") not in ("Fixed", "External")


def has_canary(service: Object) -> bool:
    """Whether the spec says that changes are compared in a canary; it may be of any form, too."""
    return bool(_part(_part(service, "spec"), "rollout").get("canary"))


def _part(obj: Object, name: str) -> Object:
    """The object ``name`` in ``obj``; empty when that is none."""
    found = obj.get(name)
    return found if isinstance(found, dict) else {}
