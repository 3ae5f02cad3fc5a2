"""Placement within host memory: k copies, balanced by load, first copies first, and with least movement."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from blade_operator.adapters.placement import SLACK, Wanted, place, preference

Placement = Mapping[str, Collection[str]]


def _engines(count: int, room: int = 0) -> dict[str, int]:
    return {f"engine-{number}": room for number in range(count)}


def _on(placement: Placement, engines: Collection[str]) -> Counter[str]:
    found = Counter(engine for copies in placement.values() for engine in copies)
    return Counter({engine: found[engine] for engine in engines})


def _new(before: Placement, after: Placement) -> int:
    return sum(len(set(copies) - set(before.get(name, ()))) for name, copies in after.items())


def _copies(adapters: list[Wanted], engines: int) -> int:
    return sum(engines if each.replicas is None else min(each.replicas, engines) for each in adapters)


_ADAPTERS = st.lists(st.tuples(st.integers(1, 5) | st.none(), st.booleans()), min_size=1, max_size=40).map(
    lambda each: [Wanted(f"adapter-{at}", replicas, preload) for at, (replicas, preload) in enumerate(each)]
)
_LOADS = st.dictionaries(st.integers(0, 39).map("adapter-{}".format), st.floats(0, 1000), max_size=10)


@given(_ADAPTERS, st.integers(1, 12), st.integers(0, 10), _LOADS)
@settings(max_examples=200, deadline=None)
def test_each_adapter_has_k_copies_where_memory_has_room_for_all(
    adapters: list[Wanted], count: int, spare: int, load: dict[str, float]
) -> None:
    fair = math.ceil(_copies(adapters, count) / count)
    placement = place(adapters, _engines(count, fair + spare), {}, load=load)
    for each in adapters:
        assert len(placement[each.name]) == (count if each.replicas is None else min(each.replicas, count))
    if spare >= fair:  # otherwise the room that is left decides
        assert max(_on(placement, _engines(count)).values()) <= math.ceil(fair * SLACK)


@given(_ADAPTERS, st.integers(1, 12), st.integers(1, 6), _LOADS, _LOADS)
@settings(max_examples=200, deadline=None)
def test_memory_is_overfilled_by_only_copies_alone_and_what_is_placed_stays(
    adapters: list[Wanted], count: int, room: int, load: dict[str, float], later: dict[str, float]
) -> None:
    engines = _engines(count, room)
    placement = place(adapters, engines, {}, load=load)
    assert all(placement.values()), "each adapter has an engine"
    second = Counter(
        engine for each in adapters if each.preload and len(placement[each.name]) > 1 for engine in placement[each.name]
    )
    assert max(second.values(), default=0) <= room
    assert place(adapters, engines, placement, load=later) == placement


@given(_ADAPTERS, st.integers(2, 12), st.data())
@settings(max_examples=200, deadline=None)
def test_an_engine_that_goes_moves_its_own_copies_and_no_others(
    adapters: list[Wanted], count: int, data: st.DataObject
) -> None:
    engines = _engines(count, 500)
    before = place(adapters, engines, {})
    gone = data.draw(st.sampled_from(sorted(engines)))
    rest = {engine: room for engine, room in engines.items() if engine != gone}
    after = place(adapters, rest, before)
    for each in adapters:
        assert before[each.name] - {gone} <= after[each.name]
    assert _new(before, after) <= _on(before, engines)[gone]
    again = place(adapters, engines, after)
    everywhere = sum(each.replicas is None or each.replicas >= count for each in adapters)
    fair = math.ceil(_copies(adapters, count) / count)
    surplus = sum(max(0, held - math.ceil(fair * SLACK)) for held in _on(after, rest).values())
    assert _new(after, again) <= everywhere + surplus, "one that comes gets what is missing or far too much"


@given(_ADAPTERS, st.integers(1, 6), st.integers(1, 6))
@settings(max_examples=100, deadline=None)
def test_new_engines_take_what_others_have_too_much_of(adapters: list[Wanted], count: int, more: int) -> None:
    engines = _engines(count + more, 500)
    placement = place(adapters, engines, place(adapters, _engines(count, 500), {}))
    fair = math.ceil(_copies(adapters, len(engines)) / len(engines))
    assert max(_on(placement, engines).values()) <= math.ceil(fair * SLACK)


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 10))
def test_pinned_adapters_leave_a_place_on_each_engine(count: int, engines: int, room: int) -> None:
    adapters = [Wanted(f"adapter-{at}", 1, pinned=at % 2 == 0) for at in range(count)]
    placement = place(adapters, _engines(engines, room), {})
    pinned = [placement[each.name] for each in adapters if each.pinned]
    if len(pinned) <= engines * (room - 1):
        assert max(Counter(engine for copies in pinned for engine in copies).values()) < room


def test_a_closed_engine_keeps_what_it_has_and_takes_nothing_new() -> None:
    adapters = [Wanted(f"adapter-{at}", 1) for at in range(12)]
    engines = _engines(3, 100)
    before = place(adapters[:6], engines, {})
    after = place(adapters, engines, before, closed={"engine-0"})
    assert {name for name, copies in after.items() if "engine-0" in copies} == {
        name for name, copies in before.items() if "engine-0" in copies
    }
    everywhere = [Wanted("everywhere")]
    assert place(everywhere, engines, {}, closed={"engine-0"}) == {"everywhere": {"engine-1", "engine-2"}}
    assert place(everywhere, engines, {"everywhere": engines}, closed={"engine-0"}) == {"everywhere": {*engines}}


def test_an_engine_that_leaves_is_replaced_although_it_still_has_its_copies() -> None:
    after = place([Wanted("sql", 2)], _engines(3, 8), {"sql": ["engine-0", "leaving"]})["sql"]
    assert "engine-0" in after
    assert len(after) == 2
    assert "leaving" not in after


def test_hot_adapters_are_kept_apart() -> None:
    adapters = [Wanted(f"adapter-{at}", 1) for at in range(40)]
    hot = {f"adapter-{at}": 100.0 for at in range(4)}
    placement = place(adapters, _engines(4, 20), {}, load=hot)
    assert len({*map(tuple, (placement[name] for name in hot))}) == 4
    assert max(_on(placement, _engines(4)).values()) <= math.ceil(10 * SLACK)


def test_the_last_room_is_used_although_only_engines_have_it_that_have_the_adapter() -> None:
    adapters = [Wanted("a", 1), Wanted("b", 1), Wanted("c", 2)]
    placement = place(adapters, _engines(2, 2), {"a": ["engine-0"], "b": ["engine-0"]})
    assert placement["c"] == {"engine-0", "engine-1"}
    assert placement["a"] | placement["b"] == {"engine-0", "engine-1"}


def test_where_memory_is_short_each_adapter_has_one_engine_before_any_has_two() -> None:
    adapters = [Wanted(f"adapter-{at}", 2 if at % 2 else None) for at in range(20)]
    placement = place(adapters, _engines(4, 6), {})
    assert all(placement.values())
    assert sum(map(len, placement.values())) == 24
    assert max(_on(placement, _engines(4)).values()) == 6


def test_adapters_without_room_are_spread_and_adapters_without_preload_take_none() -> None:
    adapters = [Wanted(f"adapter-{at}", 1) for at in range(40)]
    placement = place(adapters, _engines(4, 2), {})
    assert all(len(copies) == 1 for copies in placement.values())
    assert min(_on(placement, _engines(4)).values()) >= 4
    light = [Wanted(f"light-{at}", 2, preload=False) for at in range(40)]
    assert all(len(copies) == 2 for copies in place(light, _engines(4, 2), {}).values())


def test_without_engines_there_is_no_place() -> None:
    assert place([Wanted("a")], {}, {"a": ["gone"]}) == {"a": frozenset()}


def test_engines_with_more_room_are_preferred_in_proportion_and_the_order_of_others_stays() -> None:
    capacity = {"small": 10, "large": 30}
    first = Counter(preference(f"adapter-{at}", ["small", "large"], capacity)[0] for at in range(2000))
    assert 0.2 < first["small"] / 2000 < 0.3
    engines = sorted(_engines(8))
    for at in range(50):
        order = preference(f"adapter-{at}", engines, {})
        assert [each for each in order if each != "engine-3"] == preference(
            f"adapter-{at}", [each for each in engines if each != "engine-3"], {}
        )
