"""What reconcile decides on: the LLMService, its children as they are now, and what the engines say of themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from blade_operator.objects import Object, Ref
from blade_protocol.fetch import FetchProgress
from blade_protocol.state import EngineState


@dataclass(frozen=True, slots=True)
class Observed:
    """One consistent look at one service. Children are those labelled with its name."""

    service: Object
    deployments: tuple[Object, ...] = ()
    pods: tuple[Object, ...] = ()
    services: tuple[Object, ...] = ()
    config_maps: tuple[Object, ...] = ()
    revisions: tuple[Object, ...] = ()
    """ControllerRevisions: the rendered pod template of each revision."""
    others: tuple[Object, ...] = ()
    """Further rendered kinds (PodDisruptionBudget, ServiceAccount …)."""
    engines: Mapping[str, EngineState] = field(default_factory=dict)
    """By pod name; a pod that could not be asked is absent (unknown, not broken)."""
    downloads: Mapping[str, FetchProgress] = field(default_factory=dict)
    """By name of the pod whose model is being downloaded; absent when it could not be asked."""
    rejected: Mapping[Ref, str] = field(default_factory=dict)
    """Objects the cluster refuses as they are rendered, each with the words it did so in."""
