"""Placement of adapters: k copies, within host memory, balanced, and with least movement."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from blade_operator.adapters.placement import SLACK, Placement, lacking, place, preference


@dataclass(frozen=True)
class _Adapter:
    name: str
    replicas: int | None = 2
    preload: bool = True
    pinned: bool = False


def _engines(count: int) -> list[str]:
    return [f"engine-{number}" for number in range(count)]


def _on(placement: Placement, engines: Collection[str]) -> Counter[str]:
    found = Counter(engine for copies in placement.copies.values() for engine in copies)
    return Counter({engine: found[engine] for engine in engines})


def _new(before: Mapping[str, Collection[str]], after: Placement) -> int:
    return sum(len(set(copies) - set(before.get(name, ()))) for name, copies in after.copies.items())


_ADAPTERS = st.lists(st.tuples(st.integers(1, 5) | st.none(), st.booleans()), min_size=1, max_size=40).map(
    lambda each: [_Adapter(f"adapter-{at}", k, preload) for at, (k, preload) in enumerate(each)]
)
_LOADS = st.dictionaries(st.integers(0, 39).map("adapter-{}".format), st.floats(0, 1000), max_size=10)


def _wanted(adapters: list[_Adapter], engines: int) -> int:
    return sum(engines if each.replicas is None else min(each.replicas, engines) for each in adapters)


@given(_ADAPTERS, st.integers(1, 12), st.integers(0, 10), _LOADS)
@settings(max_examples=200, deadline=None)
def test_each_adapter_has_k_copies_where_memory_has_room_for_all(
    adapters: list[_Adapter], count: int, spare: int, load: dict[str, float]
) -> None:
    engines = _engines(count)
    capacity = dict.fromkeys(engines, math.ceil(_wanted(adapters, count) / count) + spare)
    placement = place(adapters, engines, {}, capacity, load=load)
    for each in adapters:
        wanted = count if each.replicas is None else min(each.replicas, count)
        assert len(set(placement.copies[each.name])) == len(placement.copies[each.name]) == wanted
    assert not placement.unloaded
    assert not list(lacking(adapters, placement, count))
    fair = math.ceil(_wanted(adapters, count) / count)
    if spare >= fair:  # otherwise the room that is left decides
        assert max(_on(placement, engines).values()) <= math.ceil(fair * SLACK)


@given(_ADAPTERS, st.integers(1, 12), st.integers(1, 6), _LOADS, _LOADS)
@settings(max_examples=200, deadline=None)
def test_memory_is_never_overfilled_and_what_is_placed_stays_placed(
    adapters: list[_Adapter], count: int, room: int, load: dict[str, float], later: dict[str, float]
) -> None:
    engines = _engines(count)
    capacity = dict.fromkeys(engines, room)
    placement = place(adapters, engines, {}, capacity, load=load)
    held: Counter[str] = Counter()
    for each in adapters:
        copies = placement.copies[each.name]
        assert copies, "each adapter has an engine"
        if each.preload and each.name not in placement.unloaded:
            held.update(copies)
        elif each.preload:
            assert len(copies) == 1
    assert max(held.values(), default=0) <= room
    assert place(adapters, engines, placement.copies, capacity, load=later) == placement


@given(_ADAPTERS, st.integers(2, 12), st.data())
@settings(max_examples=200, deadline=None)
def test_an_engine_that_goes_moves_its_own_copies_and_no_others(
    adapters: list[_Adapter], count: int, data: st.DataObject
) -> None:
    engines = _engines(count)
    capacity = dict.fromkeys(engines, 500)
    before = place(adapters, engines, {}, capacity)
    gone = data.draw(st.sampled_from(engines))
    rest = [engine for engine in engines if engine != gone]
    after = place(adapters, rest, before.copies, capacity)
    for each in adapters:
        assert set(before.copies[each.name]) - {gone} <= set(after.copies[each.name])
    assert _new(before.copies, after) <= _on(before, engines)[gone]
    again = place(adapters, engines, after.copies, capacity)
    everywhere = sum(each.replicas is None or each.replicas >= count for each in adapters)
    fair = math.ceil(_wanted(adapters, count) / count)
    surplus = sum(max(0, held - math.ceil(fair * SLACK)) for held in _on(after, rest).values())
    assert _new(after.copies, again) <= everywhere + surplus, "one that comes gets what is missing or far too much"


@given(_ADAPTERS, st.integers(1, 6), st.integers(1, 6))
@settings(max_examples=100, deadline=None)
def test_new_engines_take_what_others_have_too_much_of(adapters: list[_Adapter], count: int, more: int) -> None:
    before, engines = _engines(count), _engines(count + more)
    capacity = dict.fromkeys(engines, 500)
    placement = place(adapters, engines, place(adapters, before, {}, capacity).copies, capacity)
    fair = math.ceil(_wanted(adapters, len(engines)) / len(engines))
    assert max(_on(placement, engines).values()) <= math.ceil(fair * SLACK)


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 10))
def test_pinned_adapters_come_first_and_leave_a_place(count: int, engines: int, room: int) -> None:
    adapters = [_Adapter(f"adapter-{at}", 1, pinned=at % 2 == 0) for at in range(count)]
    placement = place(adapters, _engines(engines), {}, dict.fromkeys(_engines(engines), room))
    loaded = [each for each in adapters if each.name not in placement.unloaded]
    pinned = Counter(placement.copies[each.name][0] for each in loaded if each.pinned)
    assert max(pinned.values(), default=0) <= max(0, room - 1)
    if any(each.pinned and each.name in placement.unloaded for each in adapters):
        assert sum(pinned.values()) == engines * (room - 1)


def test_a_closed_engine_keeps_what_it_has_and_takes_nothing_new() -> None:
    adapters = [_Adapter(f"adapter-{at}", 1) for at in range(12)]
    engines = _engines(3)
    capacity = dict.fromkeys(engines, 100)
    before = place(adapters[:6], engines, {}, capacity)
    after = place(adapters, engines, before.copies, capacity, closed={"engine-0"})
    assert {name for name, copies in after.copies.items() if "engine-0" in copies} == {
        name for name, copies in before.copies.items() if "engine-0" in copies
    }
    everywhere = [_Adapter("everywhere", None)]
    assert place(everywhere, engines, {}, capacity, closed={"engine-0"}).copies["everywhere"] == tuple(engines[1:])
    held = {"everywhere": engines}
    assert place(everywhere, engines, held, capacity, closed={"engine-0"}).copies["everywhere"] == tuple(engines)


def test_an_engine_that_leaves_is_replaced_although_it_still_has_its_copies() -> None:
    adapters = [_Adapter("sql")]
    capacity = dict.fromkeys(_engines(3), 8)
    before = {"sql": ["engine-0", "leaving"]}
    after = place(adapters, _engines(3), before, capacity).copies["sql"]
    assert "engine-0" in after
    assert len(after) == 2
    assert "leaving" not in after


def test_hot_adapters_are_kept_apart() -> None:
    adapters = [_Adapter(f"adapter-{at}", 1) for at in range(40)]
    hot = {f"adapter-{at}": 100.0 for at in range(4)}
    placement = place(adapters, _engines(4), {}, dict.fromkeys(_engines(4), 20), load=hot)
    assert len({placement.copies[name] for name in hot}) == 4
    assert max(_on(placement, _engines(4)).values()) <= math.ceil(10 * SLACK)


def test_the_last_room_is_used_although_only_engines_have_it_that_have_the_adapter() -> None:
    adapters = [_Adapter("a", 1), _Adapter("b", 1), _Adapter("c", 2)]
    capacity = {"engine-0": 2, "engine-1": 2}
    current = {"a": ["engine-0"], "b": ["engine-0"]}
    placement = place(adapters, ["engine-0", "engine-1"], current, capacity)
    assert placement.copies["c"] == ("engine-0", "engine-1")
    assert sorted(placement.copies["a"] + placement.copies["b"]) == ["engine-0", "engine-1"]


def test_where_memory_is_short_each_adapter_has_one_engine_before_any_has_two() -> None:
    adapters = [_Adapter(f"adapter-{at}", 2 if at % 2 else None) for at in range(20)]
    engines = _engines(4)
    placement = place(adapters, engines, {}, dict.fromkeys(engines, 6))
    assert not placement.unloaded
    assert sum(map(len, placement.copies.values())) == 24
    assert len(list(lacking(adapters, placement, 4))) == 20 - sum(
        len(placement.copies[each.name]) >= (each.replicas or 4) for each in adapters
    )


def test_engines_without_adapters_get_none() -> None:
    assert place([_Adapter("a")], [], {"a": ["gone"]}, {}) == Placement({"a": ()})
    assert place([_Adapter("a")], ["engine-0"], {}, {"engine-0": 1}).copies == {"a": ("engine-0",)}


def test_engines_with_more_room_are_preferred_in_proportion_and_the_order_of_others_stays() -> None:
    capacity = {"small": 10, "large": 30}
    first = Counter(preference(f"adapter-{at}", ["small", "large"], capacity)[0] for at in range(2000))
    assert 0.2 < first["small"] / 2000 < 0.3
    engines = _engines(8)
    for at in range(50):
        order = preference(f"adapter-{at}", engines, {})
        assert [each for each in order if each != "engine-3"] == preference(
            f"adapter-{at}", [each for each in engines if each != "engine-3"], {}
        )
