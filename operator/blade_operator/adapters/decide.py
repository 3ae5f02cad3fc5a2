"""What to load and unload now, so that adapters come to be where they are placed. A pure function.

It compares what engines list with what is declared, whatever was asked of them before: an engine that started anew
lists nothing and is given all that is placed on it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from blade_operator.adapters.declaration import AdapterDeclaration
from blade_operator.adapters.engines import EngineAdapters, KnownAdapters, engine_path, same_path
from blade_operator.adapters.placement import Placement, place
from blade_operator.model.plan import AdapterAction, LoadAdapter, UnloadAdapter

MAX_LOADING: Final = 32
"""Adapters that one engine loads at a time for the operator: it has a queue of 64, in which others want a place, too."""
_UNKNOWN_CAPACITY: Final = 1024


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to happen with the adapters of a service."""

    placement: Placement = field(default_factory=lambda: Placement({}))
    actions: tuple[AdapterAction, ...] = ()
    loading: frozenset[tuple[str, str]] = frozenset()
    """Pods and adapters that are being loaded there."""
    not_replaced: frozenset[str] = frozenset()
    """Leaving pods with an adapter that no other engine has yet."""


def decide(
    declared: Sequence[AdapterDeclaration],
    engines: Sequence[EngineAdapters],
    known: KnownAdapters,
    invalid: Collection[str] = (),
) -> Decision:
    """Place the adapters, and say what has to be done for it.

    Args:
        invalid: names of adapters whose declarations cannot be used: what there is of them stays.
    """
    placement = _place(declared, engines, known)
    by_name = {each.name: each for each in declared}
    loads = [action for engine in engines if engine.target for action in _loads(engine, by_name, placement)]
    ready = {each.name: _ready(each, engines, placement) for each in declared}
    unloads = [
        UnloadAdapter(engine.pod, name)
        for engine in engines
        if not engine.leaving
        for name in engine.listed or ()
        if name not in invalid and _is_surplus(name, engine, by_name, placement, ready, known)
    ]
    return Decision(
        placement,
        (*unloads, *loads),
        frozenset(
            (engine.pod, info.name)
            for engine in engines
            for info in (engine.listed or {}).values()
            if info.state == "loading"
        ),
        frozenset(engine.pod for engine in engines if engine.leaving and _is_needed(engine, declared, engines)),
    )


def _place(declared: Sequence[AdapterDeclaration], engines: Sequence[EngineAdapters], known: KnownAdapters) -> Placement:
    targets = [engine for engine in engines if engine.target]
    names = {each.name for each in declared}
    current: defaultdict[str, set[str]] = defaultdict(set)
    load: defaultdict[str, float] = defaultdict(lambda: 1.0)
    silent = {engine.pod for engine in targets if engine.listed is None}
    for name in names:
        current[name].update(pod for pod in known.pods.get(name, ()) if pod in silent)
    for engine in engines:
        for name, info in (engine.listed or {}).items():
            if name in names:
                current[name].add(engine.pod)
                load[name] += info.requests
    most = max((engine.capacity for engine in targets), default=0) or _UNKNOWN_CAPACITY
    capacity = {engine.pod: (engine.capacity or most) - _foreign(engine, names, known) for engine in targets}
    return place(declared, capacity, current, capacity, load=load, closed=silent)


def _foreign(engine: EngineAdapters, names: Collection[str], known: KnownAdapters) -> int:
    """Adapters of others that stay in the host memory of ``engine``."""
    listed = (engine.listed or {}).values()
    return sum(info.pinned for info in listed if info.name not in names and info.name not in known.pods)


def _loads(
    engine: EngineAdapters, declared: Mapping[str, AdapterDeclaration], placement: Placement
) -> Iterator[LoadAdapter]:
    """Yields what ``engine`` is to load now."""
    if engine.listed is None:
        return
    room = MAX_LOADING - sum(info.state == "loading" for info in engine.listed.values())
    for name, pods in placement.copies.items():
        if engine.pod not in pods or room <= 0:
            continue
        action = _load(engine.pod, declared[name], placement)
        info = engine.listed.get(name)
        if info is not None and info.state != "failed" and same_path(info.path, action.path):
            done = info.state in ("loaded", "loading") or action.register_only
            if done and info.pinned == action.pinned:
                continue
        room -= 1
        yield action


def _load(pod: str, adapter: AdapterDeclaration, placement: Placement) -> LoadAdapter:
    in_memory = adapter.preload and adapter.name not in placement.unloaded
    return LoadAdapter(
        pod,
        adapter.name,
        engine_path(adapter.uri),
        pinned=adapter.pinned and in_memory,
        register_only=not in_memory,
    )


def _ready(adapter: AdapterDeclaration, engines: Sequence[EngineAdapters], placement: Placement) -> bool:
    """Whether every engine that is to have the adapter has it."""
    pods = placement.copies[adapter.name]
    registered = not adapter.preload or adapter.name in placement.unloaded
    path = engine_path(adapter.uri)
    having = sum(engine.has(adapter.name, path, registered=registered) for engine in engines if engine.pod in pods)
    return bool(pods) and having == len(pods)


def _is_surplus(
    name: str,
    engine: EngineAdapters,
    declared: Mapping[str, AdapterDeclaration],
    placement: Placement,
    ready: Mapping[str, bool],
    known: KnownAdapters,
) -> bool:
    """Whether ``engine`` is to forget an adapter that it lists: nobody declares it, or others have it in its place."""
    if name not in declared:
        return name in known.pods
    if engine.pod in placement.copies[name] or not placement.copies[name]:
        return False
    return ready[name] or not (engine.answers(name) or (engine.listed or {})[name].state == "loading")


def _is_needed(leaving: EngineAdapters, declared: Sequence[AdapterDeclaration], engines: Sequence[EngineAdapters]) -> bool:
    """Whether no engine that stays answers for an adapter that ``leaving`` answers for."""
    others = [engine for engine in engines if engine.target]
    return bool(others) and any(
        leaving.answers(each.name) and not any(engine.answers(each.name) for engine in others) for each in declared
    )
