"""Which adapters to load and unload now, from what is declared and what the engines have."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from blade_operator.adapters.placement import Wanted, place
from blade_operator.model.plan import LoadAdapter, UnloadAdapter
from blade_operator.spec.adapters.fields import Adapter
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
    silent: Mapping[str, Collection[str]] | None = None,
    refused: Mapping[tuple[str, str], str] | None = None,
) -> Decision:
    """Bring the engines to what is declared. Nothing is unloaded that the operator has not loaded, nor before its
    replacement answers requests.

    Args:
        declared: adapters, each with the path by which engines load it.
        known: names that the last status has: what the operator has loaded.
        lists: by pod, the adapters it has; a pod that does not respond, leaves or serves no adapters is absent.
        engines: state by pod.
        silent: by pod that is to have adapters and did not respond this time, those it had. It keeps them, as far as is
            known, and gets no others: for one missed query nothing moves.
        refused: by pod and adapter, why the engine refused to load it.
    """
    decision = Decision()
    silent = silent or {}
    has = {pod: {info.name: info for info in infos} for pod, infos in lists.items()}
    capacity = {pod: engines[pod].max_adapters if pod in engines else 0 for pod in has}
    names = {adapter.name for adapter, _ in declared}
    present = {
        name: frozenset(pod for pod, infos in has.items() if name in infos and infos[name].state != "failed")
        for name in names
    }
    unknown = {name: frozenset(pod for pod, held in silent.items() if name in held) for name in names}
    wanted = [Wanted(each.name, each.replicas, each.preload, each.pinned) for each, _ in declared]
    placed = place(
        wanted,
        capacity | dict.fromkeys(silent, 0),
        {name: present[name] | unknown[name] for name in names},
        load={name: 1.0 + sum(infos[name].requests for infos in has.values() if name in infos) for name in names},
        closed=silent,
    )
    for adapter, path in declared:
        refusals = {pod: text for (pod, name), text in (refused or {}).items() if name == adapter.name}
        _bring(adapter, path, placed[adapter.name], has, unknown[adapter.name], len(silent), refusals, decision)
    for name in known:
        if name not in names:
            _remove(name, has, silent, decision)
    if any(isinstance(action, UnloadAdapter) for action in decision.actions):
        decision.requeue.append(SOON)
    return decision


def _remove(
    name: str,
    has: Mapping[str, Mapping[str, AdapterInfo]],
    silent: Mapping[str, Collection[str]],
    decision: Decision,
) -> None:
    """Unload an adapter that is declared no more. It stays in the status until no engine has it."""
    listing = [pod for pod in sorted(has) if name in has[pod]]
    pods = [*listing, *(pod for pod in sorted(silent) if name in silent[pod])]
    if pods:
        decision.actions += [UnloadAdapter(pod, name) for pod in listing]
        nbytes = max((has[pod][name].nbytes for pod in listing), default=0)
        decision.statuses.append(AdapterStatus(name, 0, tuple(pods), nbytes, "it is unloaded", failed=False))


def _bring(
    adapter: Adapter,
    path: str,
    places: frozenset[str],
    has: Mapping[str, Mapping[str, AdapterInfo]],
    unknown: frozenset[str],
    silent: int,
    refusals: Mapping[str, str],
    decision: Decision,
) -> None:
    """Load one adapter where it is to be, and unload it elsewhere once it is there.

    Args:
        unknown: engines that had it when they last responded.
        silent: engines that did not respond.
        refusals: by engine, why it refused to load it.
    """
    name = adapter.name
    there = {pod: infos[name] for pod, infos in sorted(has.items()) if name in infos}
    missing = [pod for pod in sorted(places) if pod in has and not _is_current(there.get(pod), path, adapter.preload)]
    # The reason of one that has the right path is of a replacement that nobody wants any more.
    failures = {pod: info.reason for pod, info in there.items() if info.reason and not _is_current(info, path)}
    failures = {pod: text for pod, text in refusals.items() if pod in missing} | failures
    for pod in sorted(places & there.keys() - {*missing}):
        if there[pod].pinned != adapter.pinned:
            decision.actions.append(LoadAdapter(pod, name, path, adapter.pinned, adapter.preload))
    for pod in missing:
        info = there.get(pod)
        if info is None or info.state != "loading":
            decision.actions.append(LoadAdapter(pod, name, path, adapter.pinned, adapter.preload))
        decision.requeue.append(RETRY if pod in failures else SOON)
    if not missing and places and places <= has.keys():
        surplus = [pod for pod in there if pod not in places]
        decision.actions += [UnloadAdapter(pod, name) for pod in surplus]
    engines = len(has) + silent
    desired = max(1, engines) if adapter.replicas is None else adapter.replicas
    answering = {pod for pod, info in there.items() if info.state in ("registered", "loaded")} | unknown
    reasons = [f"{pod}: {reason}" for pod, reason in sorted(failures.items())]
    if not reasons and len(answering) < desired:
        if engines < desired:
            reasons = [f"{len(has)} engines respond"]
        elif missing:
            reasons = [f"{len(missing)} engines load it"]
        elif len(places) < desired and not silent:
            reasons = ["host memory of the engines has no room for more copies; raise spec.engine.lora.maxCPU"]
        else:
            reasons = [f"{silent} engines do not respond"]
    nbytes = max((info.nbytes for info in there.values()), default=0)
    pods = tuple(sorted(answering))
    decision.statuses.append(AdapterStatus(name, desired, pods, nbytes, "; ".join(reasons), bool(failures)))


def _is_current(info: AdapterInfo | None, path: str, in_memory: bool = False) -> bool:
    """Whether an engine answers requests for the adapter; ``in_memory``: and has read it."""
    answers = ("loaded",) if in_memory else ("loaded", "registered")
    return info is not None and info.state in answers and info.path.rstrip("/") == path.rstrip("/")
