"""Placement of LoRA adapters: which engines are to have which adapter. A pure function.

Bounded rendezvous hashing (Thaler and Ravishankar 1998; Mirrokni et al. 2018): an adapter prefers engines in an order
of its own, and takes the first ones that are neither full nor busier than their share. What an engine has already it
keeps, unless it has far more than its share: so an engine that goes costs the copies it had, and one that comes costs
nothing until there is something to place.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from blade_operator.adapters.ledger import Ledger

SLACK: Final = 1.25
"""How many times its share of all copies an engine may keep. Moving more than that costs more than it balances."""


class Declared(Protocol):
    """What placement needs to know of a declared adapter."""

    @property
    def name(self) -> str: ...

    @property
    def replicas(self) -> int | None:
        """Engines that are to have it; None: all."""

    @property
    def preload(self) -> bool:
        """Whether it is to be in host memory; else engines only know its name, and read it for its first request."""

    @property
    def pinned(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Placement:
    """The engines of each adapter."""

    copies: Mapping[str, tuple[str, ...]]
    """By name of the adapter: engines in order. Fewer than declared where memory or engines are missing."""
    unloaded: frozenset[str] = frozenset()
    """Adapters for which no host memory has room: their one engine only knows the name, and reads them when needed."""


def place(
    declared: Sequence[Declared],
    engines: Collection[str],
    current: Mapping[str, Collection[str]],
    capacity: Mapping[str, int],
    *,
    load: Mapping[str, float] | None = None,
    closed: Collection[str] = (),
) -> Placement:
    """The engines that are to have each adapter.

    First copies come before second ones, and pinned adapters before others, where host memory is short.

    Args:
        engines: those that may have adapters.
        current: by adapter the engines that have it, others than ``engines`` included, whose copies do not count.
        capacity: by engine, adapters that its host memory has room for.
        load: by adapter, in any unit; it decides where new copies go. 1 of those that are absent.
        closed: engines among ``engines`` that keep what they have and take nothing new.
    """
    targets = sorted(engines)
    ledger = Ledger(targets, capacity, frozenset(closed), current)
    jobs = _jobs(declared, len(targets), load or {})
    fair = math.ceil(sum(job.wanted for job in jobs) / max(1, len(targets)))
    most = math.ceil(fair * SLACK)
    fair_load = sum(job.load * job.wanted for job in jobs) / max(1, len(targets))
    if _fit_everywhere(jobs, targets, capacity):
        _put_everywhere(jobs, ledger, targets, closed)
    for level in range(max((job.wanted for job in jobs), default=0)):
        due = [job for job in jobs if job.wanted > max(level, len(ledger.of(job.name)))]
        missing = [job for job in due if not _keep(job, ledger, most)]
        for job in missing:
            if not _add(job, ledger, fair, fair_load, most) and job.in_memory:
                ledger.make_way(job.name, job.pinned, job.load)
        if not due or (ledger.is_full and all(job.in_memory for job in due)):
            break
    unloaded = [job for job in jobs if job.in_memory and job.wanted and not ledger.of(job.name)]
    for job in unloaded:
        choice = preference(job.name, ledger.open, capacity)
        here = [engine for engine in choice if engine in current.get(job.name, ())]
        for engine in (here or choice)[:1]:
            ledger.put(job.name, engine, in_memory=False, pinned=False, load=job.load)
    copies = {each.name: tuple(sorted(ledger.of(each.name))) for each in declared}
    return Placement(copies, frozenset(job.name for job in unloaded if copies[job.name]))


@dataclass(frozen=True, slots=True)
class _Job:
    """An adapter that is to be placed."""

    name: str
    wanted: int
    """Copies."""
    in_memory: bool
    pinned: bool
    load: float
    """Of each copy."""


def _jobs(declared: Sequence[Declared], engines: int, load: Mapping[str, float]) -> list[_Job]:
    """What is to be placed, the most important first."""
    jobs = []
    for each in declared:
        wanted = engines if each.replicas is None else min(each.replicas, engines)
        share = load.get(each.name, 1.0) / max(1, wanted)
        jobs.append(_Job(each.name, wanted, each.preload, each.pinned and each.preload, share))
    # Not by load, which changes all the time: who is in memory where that is short would change with it.
    return sorted(jobs, key=lambda job: (not job.pinned, _hash(job.name, "")))


def _fit_everywhere(jobs: Sequence[_Job], targets: Sequence[str], capacity: Mapping[str, int]) -> bool:
    """Whether memory is not short, so that adapters for all engines need no choice."""
    everywhere = [job for job in jobs if job.wanted == len(targets) and job.in_memory]
    total = sum(job.wanted for job in jobs if job.in_memory)
    least = min((capacity.get(engine, 0) for engine in targets), default=0)
    fits = len(everywhere) <= least and sum(job.pinned for job in everywhere) < max(1, least)
    return fits and total <= least * len(targets)


def _put_everywhere(jobs: Sequence[_Job], ledger: Ledger, targets: Sequence[str], closed: Collection[str]) -> None:
    for job in jobs:
        if job.wanted == len(targets):
            here = frozenset(ledger.current(job.name)) if closed else frozenset[str]()
            for engine in targets:
                if engine not in closed or engine in here:
                    ledger.put(job.name, engine, in_memory=job.in_memory, pinned=job.pinned, load=job.load)


def preference(adapter: str, engines: Sequence[str], capacity: Mapping[str, int]) -> list[str]:
    """``engines`` in the order in which ``adapter`` prefers them: weighted rendezvous hashing.

    Each adapter has an order of its own, and an engine that comes or goes leaves that of the others as it is. Engines
    with more room come first more often.
    """

    def cost(engine: str) -> float:
        return -math.log(_hash(adapter, engine)) / max(capacity.get(engine, 0), 1)

    return sorted(engines, key=cost)


def _keep(job: _Job, ledger: Ledger, most: int) -> bool:
    """Take over one more of the engines that have the adapter; False when there is none that may keep it."""
    here = [
        engine for engine in ledger.current(job.name) if ledger.has_room(engine, job.name, job.in_memory, job.pinned)
    ]
    here = [engine for engine in here if ledger.count(engine) < most]
    if not here:
        return False
    engine = here[0] if len(here) == 1 else preference(job.name, here, ledger.capacity)[0]
    ledger.put(job.name, engine, in_memory=job.in_memory, pinned=job.pinned, load=job.load)
    return True


def _add(job: _Job, ledger: Ledger, fair: int, fair_load: float, most: int) -> bool:
    """Choose one more engine, of those that have fewer than ``most`` copies if there are any; False: no room."""
    candidates = [each for each in ledger.open if ledger.has_room(each, job.name, job.in_memory, job.pinned)]
    if not candidates:
        return False
    engine = next(
        (
            engine
            for engine in preference(job.name, candidates, ledger.capacity)
            if ledger.count(engine) < fair and ledger.load(engine) + job.load <= max(fair_load, job.load)
        ),
        None,
    )
    if engine is None:
        few = [each for each in candidates if ledger.count(each) < most]
        here = [each for each in ledger.current(job.name) if each in candidates]
        engine = min(few or here or candidates, key=lambda each: (ledger.load(each), ledger.count(each), each))
    ledger.put(job.name, engine, in_memory=job.in_memory, pinned=job.pinned, load=job.load)
    return True


@lru_cache(maxsize=1 << 16)
def _hash(adapter: str, engine: str) -> float:
    """A number above 0 and below 1 that every process finds equal."""
    digest = hashlib.blake2b(f"{adapter}\0{engine}".encode(), digest_size=6).digest()
    return (int.from_bytes(digest, "big") + 0.5) / (1 << 48)


def lacking(declared: Sequence[Declared], placement: Placement, engines: int) -> Iterator[Declared]:
    """Yields those of ``declared`` that have fewer copies in memory than they should, ``engines`` being there."""
    for each in declared:
        wanted = engines if each.replicas is None else min(each.replicas, engines)
        if each.name in placement.unloaded or len(placement.copies.get(each.name, ())) < wanted:
            yield each
