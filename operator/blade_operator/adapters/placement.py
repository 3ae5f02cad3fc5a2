"""Where LoRA adapters are to be: each on k of n engines, evenly, moving as little as possible when engines come and go.

Bounded rendezvous hashing (Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998; Mirrokni et
al., "Consistent hashing with bounded loads", arXiv 1608.01350): an adapter prefers engines in an order of its own, and
takes the first ones that are neither full nor busier than their share. What an engine has already it keeps, unless it
has far more than its share: so an engine that goes costs the copies it had, and one that comes costs nothing until
there is something to place.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from blade_operator.adapters.ledger import Ledger

SLACK: Final = 1.25
"""How many times its share of all copies an engine may keep. Moving more than that costs more than it balances."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """An adapter, and on how many engines it is to be; None: on all."""

    name: str
    replicas: int | None = None
    preload: bool = True
    """Whether it is to be in host memory from the start; else it takes none of the room until a request comes."""
    pinned: bool = False


def place(
    adapters: Sequence[Wanted],
    engines: Mapping[str, int],
    present: Mapping[str, Collection[str]],
    *,
    load: Mapping[str, float] | None = None,
    closed: Collection[str] = (),
) -> dict[str, frozenset[str]]:
    """The engines that each adapter is to be on, by its name.

    Where host memory is short, first copies come before second ones, and pinned adapters before others. Each adapter
    has one engine all the same, which then reads it for its requests.

    Args:
        engines: by name, how many adapters each holds; 0: not known, any number.
        present: by adapter, the engines that have it now. Those that are not among ``engines`` do not count.
        load: by adapter, in any unit; it decides where new copies go. 1 of those that are absent.
        closed: engines that keep what they have and take nothing new.
    """
    targets = sorted(engines)
    jobs = _jobs(adapters, len(targets), load or {})
    copies = sum(job.wanted for job in jobs)
    capacity = {engine: engines[engine] or copies + 1 for engine in targets}
    ledger = Ledger(targets, capacity, frozenset(closed), present)
    fair = math.ceil(copies / max(1, len(targets)))
    fair_load = sum(job.load * job.wanted for job in jobs) / max(1, len(targets))
    if _fit_everywhere(jobs, targets, capacity):
        _put_everywhere(jobs, ledger, targets, closed)
    _put_levels(jobs, ledger, fair, fair_load)
    for job in jobs:
        if job.wanted and not ledger.of(job.name):
            choice = preference(job.name, ledger.open, capacity)
            here = [engine for engine in choice if engine in present.get(job.name, ())]
            for engine in (here or choice)[:1]:
                ledger.put(job.name, engine, in_memory=False, pinned=False, load=job.load)
    return {each.name: frozenset(ledger.of(each.name)) for each in adapters}


def _put_levels(jobs: Sequence[_Job], ledger: Ledger, fair: int, fair_load: float) -> None:
    """Place the first copy of each adapter, then the second of each, and so on."""
    most = math.ceil(fair * SLACK)
    for level in range(max((job.wanted for job in jobs), default=0)):
        due = [job for job in jobs if job.wanted > max(level, len(ledger.of(job.name)))]
        missing = [job for job in due if not _keep(job, ledger, most)]
        for job in missing:
            if not _add(job, ledger, fair, fair_load, most) and job.in_memory:
                ledger.make_way(job.name, job.pinned, job.load)
        if not due or (ledger.is_full and all(job.in_memory for job in due)):
            return


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


def _jobs(adapters: Sequence[Wanted], engines: int, load: Mapping[str, float]) -> list[_Job]:
    """What is to be placed, the most important first."""
    jobs = []
    for each in adapters:
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
