"""Rules by which control planes put adapters on engines, each written anew from what it does.

A rule is given the adapters in the order in which they were declared, the engines that are ready in the order of their
names, and where each adapter is. It says where each is to be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from blade_operator.adapters.placement import Wanted, place

Places = Mapping[str, Collection[str]]
Decide = Callable[[Sequence[str], Sequence[str], int, Places], Places]
"""Adapters, ready engines, adapters that an engine's host memory has room for, where each is → where each is to be."""


@dataclass(frozen=True)
class Rule:
    """One control plane's rule."""

    name: str
    copies: int
    """Engines that each adapter is to be on; 0: all."""
    decide: Decide


def _bladellm(copies: int) -> Decide:
    def decide(adapters: Sequence[str], engines: Sequence[str], room: int, present: Places) -> Places:
        return place([Wanted(name, copies) for name in adapters], dict.fromkeys(engines, room), present)

    return decide


def _all_on_all(adapters: Sequence[str], engines: Sequence[str], room: int, present: Places) -> Places:
    """KubeAI; AIBrix and production-stack without a number of replicas."""
    everywhere = frozenset(engines)
    return dict.fromkeys(adapters, everywhere)


def _least_adapters(adapters: Sequence[str], engines: Sequence[str], room: int, present: Places) -> Places:
    """AIBrix with ``replicas: 1``: stays where it is; else the engine with the fewest adapters, whatever it holds."""
    ready = frozenset(engines)
    places = {name: frozenset(present.get(name, ())) & ready for name in adapters}
    counts = Counter(dict.fromkeys(engines, 0))
    counts.update(engine for each in places.values() for engine in each)
    for name in adapters:
        if not places[name] and engines:
            chosen = min(engines, key=lambda engine: counts[engine])
            counts[chosen] += 1
            places[name] = frozenset({chosen})
    return places


def _first_ready(copies: int) -> Decide:
    """production-stack: the first ``copies`` of the ready engines, the same for every adapter."""

    def decide(adapters: Sequence[str], engines: Sequence[str], room: int, present: Places) -> Places:
        first = frozenset(engines[:copies])
        return dict.fromkeys(adapters, first)

    return decide


OURS = ("bladellm_k2", "bladellm_k1")
RULES = (
    Rule("bladellm_k2", 2, _bladellm(2)),
    Rule("bladellm_k1", 1, _bladellm(1)),
    Rule("kubeai_all", 0, _all_on_all),
    Rule("aibrix_1", 1, _least_adapters),
    Rule("production_stack_2", 2, _first_ready(2)),
)
