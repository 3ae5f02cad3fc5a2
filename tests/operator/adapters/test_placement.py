"""Placement: k copies, evenly, within the bound, and with as little movement as there can be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from blade_operator.adapters.placement import Wanted, place

ENGINES = st.lists(st.sampled_from([f"e{i}" for i in range(12)]), min_size=1, max_size=12, unique=True)
ADAPTERS = st.lists(
    st.builds(Wanted, st.sampled_from([f"a{i}" for i in range(40)]), st.none() | st.integers(1, 4)),
    max_size=40,
    unique_by=lambda each: each.name,
)


def moved(before: dict[str, frozenset[str]], after: dict[str, frozenset[str]]) -> int:
    """Copies that have to be made."""
    return sum(len(after[name] - before.get(name, frozenset())) for name in after)


@given(engines=ENGINES, adapters=ADAPTERS)
def test_each_is_on_as_many_as_it_is_to_be(engines: list[str], adapters: list[Wanted]) -> None:
    placed = place(adapters, dict.fromkeys(engines, 0), {})
    for adapter in adapters:
        wanted = len(engines) if adapter.replicas is None else min(adapter.replicas, len(engines))
        assert len(placed[adapter.name]) == wanted
        assert placed[adapter.name] <= set(engines)


@given(engines=ENGINES, adapters=ADAPTERS)
def test_nothing_moves_while_nothing_changes(engines: list[str], adapters: list[Wanted]) -> None:
    rooms = dict.fromkeys(engines, 0)
    placed = place(adapters, rooms, {})
    assert place(adapters, rooms, placed) == placed
    assert place(list(reversed(adapters)), rooms, placed) == placed


@given(engines=ENGINES, adapters=ADAPTERS)
def test_engines_are_filled_evenly(engines: list[str], adapters: list[Wanted]) -> None:
    placed = place(adapters, dict.fromkeys(engines, 0), {})
    copies = sum(map(len, placed.values()))
    most = max(sum(engine in places for places in placed.values()) for engine in engines)
    assert most <= -(-copies * 5 // (4 * len(engines))) + 1


def test_only_what_a_lost_engine_had_moves() -> None:
    adapters = [Wanted(f"a{i}", 2) for i in range(200)]
    engines = dict.fromkeys([f"e{i}" for i in range(10)], 0)
    before = place(adapters, engines, {})
    lost = sum("e3" in places for places in before.values())
    rest = {name: room for name, room in engines.items() if name != "e3"}
    there = {name: places - {"e3"} for name, places in before.items()}
    after = place(adapters, rest, there)
    assert moved(there, after) == lost
    assert moved(after, place(adapters, engines, after)) == 0, "an engine that comes back takes nothing away"


def test_an_engine_gets_no_more_than_it_holds_while_others_have_room() -> None:
    adapters = [Wanted(f"a{i}", 1) for i in range(12)]
    placed = place(adapters, {"small": 2, "large": 100}, {})
    assert sum("small" in places for places in placed.values()) <= 2
    assert all(len(places) == 1 for places in placed.values())
