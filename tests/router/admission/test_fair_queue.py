"""The fair queue: bands are strict, keys share by weight, and each key's requests stay in order."""

from collections import Counter, OrderedDict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blade_router.admission.fair_queue import QUANTUM, FairQueue, Waiting


class Item(Waiting):
    def __init__(self, key: str, weight: float, priority: int, cost: int, number: int) -> None:
        super().__init__(key, weight, priority, cost)
        self.number = number


items = st.tuples(st.sampled_from("abc"), st.sampled_from([0.5, 1.0, 2.0]), st.integers(0, 2), st.integers(1, 5000))


@given(st.lists(st.one_of(items, st.just("pop"), st.integers(0, 50)), max_size=120))
def test_nothing_is_lost_and_each_keys_requests_stay_in_order(actions: list[Any]) -> None:
    queue: FairQueue[Item] = FairQueue()
    model: OrderedDict[int, Item] = OrderedDict()
    for number, action in enumerate(actions):
        if isinstance(action, tuple):
            item = Item(*action, number)
            model[number] = item
            queue.push(item)
        elif action == "pop" and model:
            item = queue.pop()
            best = min(each.priority for each in model.values())
            assert item.priority == best, "bands are strict"
            same = [each for each in model.values() if (each.priority, each.key) == (best, item.key)]
            assert item is same[0]
            del model[item.number]
        elif isinstance(action, int) and model:
            item = list(model.values())[action % len(model)]
            queue.remove(item)
            del model[item.number]
        assert queue.count == len(model)
    while queue.count:
        assert model.pop(queue.pop().number)
    assert not model
    assert not queue.bands


@given(
    weights=st.lists(st.sampled_from([0.25, 1.0, 1.0, 2.0, 4.0]), min_size=2, max_size=4),
    costs=st.lists(st.integers(1, 3000), min_size=4, max_size=4),
)
@settings(max_examples=50)
def test_keys_that_always_wait_share_by_weight(weights: list[float], costs: list[int]) -> None:
    """However dear their requests: no key is further ahead of another than a round and a request."""
    queue: FairQueue[Item] = FairQueue()
    for index, weight in enumerate(weights):
        for number in range(2):
            queue.push(Item(str(index), weight, 0, costs[index], number))
    spent: Counter[int] = Counter()
    for number in range(400):
        index = int(queue.pop().key)
        spent[index] += costs[index]
        queue.push(Item(str(index), weights[index], 0, costs[index], number))
        shares = [spent[index] / weights[index] for index in range(len(weights))]
        slack = max(costs[index] / weights[index] for index in range(len(weights))) + 2 * QUANTUM
        assert max(shares) - min(shares) <= slack


@pytest.mark.parametrize("cost", [10**400, 10**30])
def test_an_absurd_cost_is_a_high_one(cost: int) -> None:
    queue: FairQueue[Item] = FairQueue()
    queue.push(Item("absurd", 1.0, 0, cost, 0))
    queue.push(Item("usual", 1.0, 0, 300, 1))
    assert [queue.pop().number for _ in range(2)] == [1, 0]


def test_what_cannot_be_queued_leaves_no_trace() -> None:
    queue: FairQueue[Item] = FairQueue()
    broken = Item("broken", 1.0, 0, 1, 0)
    broken.cost = 10**400
    for others in (0, 1):
        with pytest.raises(OverflowError):
            queue.push(broken)
        assert queue.count == len(queue.bands) == others
        queue.push(Item("usual", 1.0, 0, 300, 1))
    assert [queue.pop().number for _ in range(2)] == [1, 1]
    assert not queue.bands


def test_requests_that_left_leave_nothing_behind() -> None:
    queue: FairQueue[Item] = FairQueue()
    queue.push(Item("stays", 1.0, 0, 10**9, 0))
    for number in range(1000):
        item = Item(f"key {number % 7}", 1.0, 0, 10, number)
        queue.push(item)
        queue.remove(item)
    assert len(queue.bands[0].keys) == 1
    assert len(queue.bands[0]._heap) < 100
