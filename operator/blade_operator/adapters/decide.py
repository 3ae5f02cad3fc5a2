"""Which adapters to load and unload now, from what is declared and what the engines have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from blade_operator.adapters.placement import Wanted, place
from blade_operator.model.plan import LoadAdapter, UnloadAdapter
from blade_operator.spec.adapter_fields import Adapter
from blade_protocol.adapters import AdapterInfo
from blade_protocol.state import EngineState

SOON: Final = 1.0
"""Seconds until engines that load adapters are queried again."""
RETRY: Final = 15.0
"""Seconds until an adapter that could not be loaded is tried again: files may have come meanwhile."""
LIMIT: Final = 16
"""Pods that a status names for one adapter at most."""


@dataclass(frozen=True, slots=True)
class AdapterStatus:
    """One adapter as it really is on the engines."""

    name: str
    desired: int
    pods: tuple[str, ...]
    """Those that answer requests for it."""
    nbytes: int
    reason: str
    """Why it is not where it is to be, in an engine's own words where there are some."""
    failed: bool
    """An engine could not load it."""

    def as_status(self) -> dict[str, Any]:
        """The entry of ``status.adapters``."""
        entry: dict[str, Any] = {"name": self.name, "desired": self.desired, "loaded": len(self.pods)}
        entry["pods"] = list(self.pods[:LIMIT])
        entry["bytes"] = self.nbytes
        return entry | ({"reason": self.reason[:1024]} if self.reason else {})


@dataclass(slots=True)
class Decision:
    """What to do now about adapters."""

    actions: list[LoadAdapter | UnloadAdapter] = field(default_factory=list)
    statuses: list[AdapterStatus] = field(default_factory=list)
    requeue: list[float] = field(default_factory=list)
    """Seconds until the engines are to be queried."""


def decide(
    declared: Sequence[tuple[Adapter, str]],
    known: Sequence[str],
    lists: Mapping[str, Sequence[AdapterInfo]],
    engines: Mapping[str, EngineState],
) -> Decision:
    """Bring the engines to what is declared. Nothing is unloaded that the operator has not loaded, nor before its
    replacement answers requests.

    Args:
        declared: adapters, each with the path by which engines load it.
        known: names that the last status has: what the operator has loaded.
        lists: by pod, the adapters it has; a pod that does not respond, leaves or serves no adapters is absent.
        engines: state by pod.
    """
    decision = Decision()
    has = {pod: {info.name: info for info in infos} for pod, infos in lists.items()}
    capacity = {pod: engines[pod].max_adapters if pod in engines else 0 for pod in has}
    names = {adapter.name for adapter, _ in declared}
    present = {
        name: frozenset(pod for pod, infos in has.items() if name in infos and infos[name].state != "failed")
        for name in names
    }
    placed = place([Wanted(adapter.name, adapter.replicas) for adapter, _ in declared], capacity, present)
    for adapter, path in declared:
        _bring(adapter, path, placed[adapter.name], has, decision)
    for pod, infos in has.items():
        gone = [name for name in infos if name in known and name not in names]
        decision.actions += [UnloadAdapter(pod, name) for name in gone]
    if any(isinstance(action, UnloadAdapter) for action in decision.actions):
        decision.requeue.append(SOON)
    return decision


def _bring(
    adapter: Adapter,
    path: str,
    places: frozenset[str],
    has: Mapping[str, Mapping[str, AdapterInfo]],
    decision: Decision,
) -> None:
    """Load one adapter where it is to be, and unload it elsewhere once it is there."""
    name = adapter.name
    there = {pod: infos[name] for pod, infos in has.items() if name in infos}
    missing = [pod for pod in sorted(places) if not _is_current(there.get(pod), path)]
    reasons = [f"{pod}: {info.reason}" for pod, info in sorted(there.items()) if info.reason]
    for pod in missing:
        info = there.get(pod)
        failed = info is not None and bool(info.reason)
        if info is None or info.state != "loading":
            decision.actions.append(LoadAdapter(pod, name, path, adapter.pinned, adapter.preload))
        decision.requeue.append(RETRY if failed else SOON)
    if not missing:
        surplus = [pod for pod in sorted(there) if pod not in places]
        decision.actions += [UnloadAdapter(pod, name) for pod in surplus]
    desired = len(has) if adapter.replicas is None else adapter.replicas
    answering = tuple(pod for pod, info in sorted(there.items()) if info.state in ("registered", "loaded"))
    if not reasons and len(answering) < desired:
        reasons = [f"{len(has)} engines respond"] if len(has) < desired else [f"{len(missing)} engines load it"]
    nbytes = max((info.nbytes for info in there.values()), default=0)
    failed = any(info.reason for info in there.values())
    decision.statuses.append(AdapterStatus(name, desired, answering, nbytes, "; ".join(reasons), failed))


def _is_current(info: AdapterInfo | None, path: str) -> bool:
    return info is not None and info.state in ("registered", "loaded") and info.path.rstrip("/") == path.rstrip("/")
