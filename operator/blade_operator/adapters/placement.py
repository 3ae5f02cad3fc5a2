"""Where LoRA adapters are to be: each on k of n engines, evenly, moving as little as possible when engines come and go.

Rendezvous hashing (Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998) ranks the engines
of an adapter; an engine that has it already comes before those that have not. No engine takes another one beyond a
bound (Mirrokni et al., "Consistent hashing with bounded loads", arXiv 1608.01350), or beyond what it holds, while
others have room; what is there stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

_SLACK: Final = 1.25
"""An engine has at most so many times the mean number of adapters."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """An adapter, and on how many engines it is to be; None: on all."""

    name: str
    replicas: int | None = None


def place(
    adapters: Sequence[Wanted],
    engines: Mapping[str, int],
    present: Mapping[str, frozenset[str]],
) -> dict[str, frozenset[str]]:
    """The engines that each adapter is to be on, by its name.

    Args:
        engines: by name, how many adapters each holds; 0: not known, any number.
        present: by adapter, the engines that have it now.
    """
    bound = _bound(adapters, len(engines))
    taken = dict.fromkeys(engines, 0)
    placed: dict[str, frozenset[str]] = {}
    for adapter in sorted(adapters, key=lambda each: each.name):
        count = len(engines) if adapter.replicas is None else min(adapter.replicas, len(engines))
        there = present.get(adapter.name, frozenset())
        ranked = sorted(engines, key=lambda engine: (-_weight(adapter.name, engine), engine))

        order = {engine: _order(engine in there, taken[engine], engines[engine], bound) for engine in engines}
        chosen = sorted(ranked, key=order.__getitem__)[:count]
        for engine in chosen:
            taken[engine] += 1
        placed[adapter.name] = frozenset(chosen)
    return placed


def _order(there: bool, taken: int, room: int, bound: int) -> tuple[bool, bool, bool, int]:
    """Sort key of an engine that has taken so many adapters: those with room first, and those that have it already."""
    full = 0 < room <= taken
    beyond = not there and taken >= bound
    return full, beyond, not there, taken if full or beyond else 0


def _bound(adapters: Sequence[Wanted], engines: int) -> int:
    copies = sum(engines if each.replicas is None else min(each.replicas, engines) for each in adapters)
    return max(1, -int(-copies * _SLACK // max(engines, 1)))


def _weight(adapter: str, engine: str) -> int:
    return int.from_bytes(blake2b(f"{adapter}\0{engine}".encode(), digest_size=8).digest())
