"""The approximate index, against a model that is too simple to be wrong."""

import gc
import itertools
import random
import subprocess
import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from blade_protocol.routing import EndpointConfig
from blade_router.endpoints.endpoint import Endpoint
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.policies.prefix_cache.prefix_index import (
    BYTES_PER_ENTRY,
    EVICTION_BATCH,
    PENDING_FRACTION,
    PrefixIndex,
)
from blade_router.request.prompt_text import BLOCK, BYTES_PER_TOKEN
from blade_router.request.usage import Usage

BLOCK_TOKENS = BLOCK // BYTES_PER_TOKEN


def endpoints(count: int) -> list[Endpoint]:
    found = EndpointSet()
    found.update(EndpointConfig(url=f"http://10.0.0.{index}:80", name=str(index)) for index in range(count))
    return found.all


def index_of(blocks: int) -> PrefixIndex:
    return PrefixIndex(blocks * BYTES_PER_ENTRY)


def place(index: PrefixIndex, chain: list[int], endpoint: Endpoint, cached: float | None = None) -> int:
    """Run one request from match to completion; returns the blocks predicted to be cached."""
    (matched,) = index.match(chain, [endpoint])
    placement = index.sent(chain, endpoint, matched)
    placement.first_byte()
    placement.ended(None if cached is None else Usage(1000, 1, round(1000 * cached)))
    return matched


class Model:
    """Each endpoint a list, from the oldest block to the newest."""

    def __init__(self, size: int, count: int) -> None:
        self.share = size // count
        self.lists: dict[int, list[int]] = {at: [] for at in range(count)}

    def match(self, chain: list[int]) -> list[int]:
        return [
            next((depth for depth, block in enumerate(chain) if block not in held), len(chain))
            for held in self.lists.values()
        ]

    def sent(self, chain: list[int], at: int) -> None:
        held = [block for block in self.lists[at] if block not in chain] + chain[::-1]
        self.lists[at] = held[-self.share :]


@st.composite
def prompts(draw: st.DrawFn) -> list[int]:
    """A path in a tree, as chains of prompts are: equal numbers mean equal beginnings."""
    steps = draw(st.lists(st.integers(0, 2), max_size=6))
    return [hash(tuple(steps[: depth + 1])) for depth in range(len(steps))]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), prompts()), max_size=60))
def test_it_is_one_lru_per_endpoint(requests: list[tuple[int, list[int]]]) -> None:
    three, size = endpoints(3), 24
    index, model = index_of(size), Model(size, 3)
    for endpoint in three:  # so that shares are what they will be
        index.sent([], endpoint, 0).first_byte()
    for at, chain in requests:
        expected = model.match(chain)
        assert index.match(chain, three) == expected
        index.sent(chain, three[at], expected[at]).first_byte()
        model.sent(chain, at)
        assert len(index) == sum(len(held) for held in model.lists.values())
    for _, chain in requests:
        assert index.match(chain, three[::-1]) == model.match(chain)[::-1]


def test_a_burst_is_found_before_its_first_response() -> None:
    one, two = endpoints(2)
    index = index_of(100)
    index.sent([1, 2, 3], one, 0)
    assert index.match([1, 2, 4], [one, two]) == [2, 0]


def test_a_request_without_a_response_left_nothing() -> None:
    one, two = endpoints(2)
    index = index_of(100)
    place(index, [1, 2], one)
    index.sent([1, 2, 3], one, 2).ended(None)
    assert index.match([1, 2, 3], [one, two]) == [2, 0]
    assert len(index) == 2


def test_memory_is_bounded_whatever_joins() -> None:
    many = endpoints(8)
    index = index_of(100)
    numbers = itertools.count()
    for step in range(400):
        place(index, [next(numbers) for _ in range(7)], many[min(step // 50, 7)])
        assert len(index) <= 100


def test_a_prompt_larger_than_the_index_keeps_its_beginning() -> None:
    (one,) = endpoints(1)
    index = index_of(10)
    chain = list(range(50))
    place(index, chain, one)
    assert index.match(chain, [one]) == [10]


def test_a_removed_endpoint_is_evicted_bit_by_bit() -> None:
    one, two, three = endpoints(3)
    index = index_of(10_000)
    for start in range(0, 1000, 10):
        place(index, list(range(start, start + 10)), one)
    index.removed(one)
    index.removed(one)
    assert index.match(list(range(10)), [one, two]) == [0, 0]
    assert len(index) == 1000  # nothing was done yet, so nobody waited
    before = len(index)
    while len(index) > 30:
        place(index, [-1, -2, -3], two)
        assert before - len(index) <= EVICTION_BATCH + 3
        before = len(index)
    for _ in range(3):
        place(index, [-1, -2, -3], two)
    assert len(index) == 3
    place(index, [7, 8], three)  # gets the number that has become free
    assert index.match([7, 8], [one, two, three]) == [0, 0, 2]
    assert index.match([-1, -2, -3], [one, two, three]) == [0, 3, 0]


def test_a_number_is_not_given_twice() -> None:
    fleet = endpoints(6)
    index = index_of(1000)
    place(index, [1, 2], fleet[0])
    place(index, [1, 2], fleet[1])
    index.removed(fleet[0])
    place(index, [3], fleet[2])
    place(index, [4], fleet[3])
    assert index.match([1, 2], fleet) == [0, 2, 0, 0, 0, 0]
    assert index.match([3], fleet) == [0, 0, 1, 0, 0, 0]
    assert index.match([4], fleet) == [0, 0, 0, 1, 0, 0]


# learning from responses


def test_a_response_without_cached_tokens_forgets_nothing() -> None:
    """The engine has computed the prompt by then, whatever it had before."""
    (one,) = endpoints(1)
    index = index_of(1000)
    chain = list(range(20))
    for cached in (0.0, 1.0, 0.0, 0.0):  # as of an engine that was restarted, too
        place(index, chain, one, cached)
        assert index.match(chain, [one]) == [20]


def test_zero_for_ever_teaches_nothing() -> None:
    (one,) = endpoints(1)
    index = index_of(1000)
    groups = [[hash((group, block)) for block in range(10)] for group in range(40)]
    for group in groups * 5:
        place(index, group, one, cached=0.0)
    assert [index.match(group, [one]) for group in groups] == [[10]] * 40


def test_tokens_of_another_tokenizer_are_no_misses() -> None:
    (one,) = endpoints(1)
    index = index_of(1000)
    groups = [[hash((group, block)) for block in range(10)] for group in range(40)]
    for turn in range(5):
        for group in groups:
            place(index, group, one, cached=0.4 if turn else 0.0)
    assert [index.match(group, [one]) for group in groups] == [[10]] * 40


def test_a_sum_over_requests_is_not_believed() -> None:
    (one,) = endpoints(1)
    index = index_of(1000)
    groups = [[hash((group, block)) for block in range(10)] for group in range(40)]
    total = 0.0
    for turn in range(5):
        for group in groups:
            total += 1.0 if turn else 0.0
            place(index, group, one, cached=total)
    assert [index.match(group, [one]) for group in groups] == [[10]] * 40


def test_a_right_prediction_changes_nothing() -> None:
    (one,) = endpoints(1)
    index = index_of(1000)
    chain = list(range(20))
    for _ in range(5):
        place(index, chain, one, cached=0.98)
    assert index.match(chain, [one]) == [20]


def test_a_prompt_still_being_computed_is_no_evidence() -> None:
    (one,) = endpoints(1)
    index = index_of(1000)
    place(index, list(range(100, 200)), one)
    chain = list(range(20))
    first = index.sent(chain, one, 0)
    second = index.sent(chain, one, 20)  # a burst: the engine has nothing cached when this one comes
    first.first_byte()
    second.first_byte()
    second.ended(Usage(1000, 1, 0))
    assert index.match(chain, [one]) == [20]


def test_an_engine_with_a_small_cache_is_found_out() -> None:
    (one,) = endpoints(1)
    index = index_of(1000)
    real: list[list[int]] = []
    groups = [[hash((group, block)) for block in range(10)] for group in range(40)]
    wrong = []
    for cached in (0.0, 1.0):  # it does report what it has
        place(index, list(range(5)), one, cached)
    for _ in range(10):
        wrong.append(0)
        for group in groups:  # in turn: the engine, which holds 20 of the 40, never has the one that comes
            wrong[-1] += place(index, group, one, cached=1.0 if group in real else 0.0) > 0
            real = [*(each for each in real if each is not group), group][-20:]
    assert wrong[0] == 0 < wrong[1]
    assert wrong[-1] == 0
    for group in groups[:15] * 3:  # now it always has what comes
        place(index, group, one, cached=1.0)
    assert index.match(groups[0], [one]) == [10]


def test_usage_without_cached_tokens_teaches_nothing() -> None:
    (one,) = endpoints(1)
    index = index_of(1000)
    chain = list(range(20))
    place(index, chain, one)
    for usage in (None, Usage(1000, 1, None), Usage(0, 0, 0)):
        placement = index.sent(chain, one, 20)
        placement.first_byte()
        placement.ended(usage)
    assert index.match(chain, [one]) == [20]


def test_an_entry_takes_the_declared_memory() -> None:
    """In a fresh process: the index filled twice over with prompts that never come again."""
    code = """
import gc, random, resource
from blade_router.policies.prefix_cache.prefix_index import BYTES_PER_ENTRY, PrefixIndex
from blade_protocol.routing import EndpointConfig
from blade_router.endpoints.endpoint_set import EndpointSet
def resident():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
found = EndpointSet()
found.update(EndpointConfig(url=f"http://10.0.0.{at}:80") for at in range(4))
rng = random.Random(1)
before = resident()
index = PrefixIndex(16 << 20)
for at in range(2 * (16 << 20) // BYTES_PER_ENTRY // 8):
    index.sent([rng.getrandbits(63) for _ in range(8)], found.all[at % 4], 0).first_byte()
print(resident() - before)
"""
    used = int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert used <= 16 << 20


def test_nothing_is_kept_of_requests_that_are_over() -> None:
    (one,) = endpoints(1)
    index = index_of(64)
    rng = random.Random(1)
    gc.collect()
    of_others = recorded_prompts()  # of tests before
    for _ in range(100):
        place(index, [rng.getrandbits(63) for _ in range(4)], one)
    assert [each for each in recorded_prompts() if not any(each is other for other in of_others)] == []


def recorded_prompts() -> list[object]:
    return [each for each in gc.get_objects() if type(each).__name__ == "RecordedPrompt"]


# prompts that get no response


def test_prompts_without_a_response_evict_nothing() -> None:
    (one,) = endpoints(1)
    index = index_of(80)
    kept = [[group * 10 + block for block in range(10)] for group in range(8)]
    for chain in kept:
        place(index, chain, one)
    numbers = itertools.count(1000)
    for _ in range(50):
        flood = [index.sent([next(numbers) for _ in range(30)], one, 0) for _ in range(20)]
        assert len(index._locations) <= 80 + 80 // PENDING_FRACTION
        for recorded in flood:
            recorded.ended(None)
    assert [index.match(chain, [one]) for chain in kept] == [[10]] * 8
    assert len(index) == len(index._locations) == 80
    place(index, [next(numbers) for _ in range(10)], one)
    assert [index.match(chain, [one])[0] > 0 for chain in kept] == [False, *[True] * 7], (
        "the oldest goes first, as ever"
    )


def test_a_prompt_without_a_response_leaves_what_another_one_brought() -> None:
    one, two = endpoints(2)
    for answered_first in (False, True):
        index = index_of(100)
        refused = index.sent([1, 2, 3], one, 0)
        answered = index.sent([1, 2, 3, 4], one, 3)
        if answered_first:
            answered.first_byte()
        refused.ended(None)
        answered.first_byte()
        assert index.match([1, 2, 3, 4], [one, two]) == [4, 0]
        assert len(index) == len(index._locations) == 4


def test_a_prompt_is_inserted_whole_when_its_beginning_has_failed_meanwhile() -> None:
    (one,) = endpoints(1)
    for chain in ([1, 2, 3], [1, 2]):
        index = index_of(100)
        failing = index.sent([1, 2], one, 0)
        computing = index.sent(chain, one, 2)
        failing.ended(None)
        assert index.match([1, 2], [one]) == [0]
        computing.first_byte()
        assert [index.match(chain[:depth], [one])[0] for depth in range(1, len(chain) + 1)] == [
            *range(1, len(chain) + 1)
        ]
        assert len(index) == len(chain)


def test_a_prompt_finds_the_cache_as_those_before_it_leave_it() -> None:
    """The engine computes what waits in the order it came: what is evicted until then is of no use."""
    (one,) = endpoints(1)
    one.report.cache_tokens = 40 * BLOCK_TOKENS
    index = index_of(10_000)
    place(index, list(range(30)), one)
    waiting = [index.sent(list(range(start, start + 20)), one, 0) for start in (100, 200)]
    assert index.match(list(range(30)), [one]) == [0]
    assert [index.match(list(range(start, start + 20)), [one]) for start in (100, 200)] == [[20], [20]]
    for recorded in waiting:
        recorded.first_byte()
    assert index.match(list(range(30)), [one]) == [0]
    assert len(index) == len(index._locations) == 40


def test_what_a_failed_prompt_pushed_out_comes_back() -> None:
    (one,) = endpoints(1)
    one.report.cache_tokens = 40 * BLOCK_TOKENS
    index = index_of(10_000)
    chains = [list(range(start, start + 20)) for start in (0, 100, 200, 300)]
    place(index, chains[0], one)
    place(index, chains[1], one)
    failing, served = index.sent(chains[2], one, 0), index.sent(chains[3], one, 0)
    failing.ended(None)
    served.first_byte()
    assert [index.match(chain, [one])[0] for chain in chains] == [0, 20, 0, 20]
    assert len(index) == len(index._locations) == 40


def test_a_removed_endpoint_leaves_nothing_pending() -> None:
    one, two, three = endpoints(3)
    index = index_of(1000)
    place(index, [1], one)
    late = [index.sent([1, 2, 3], one, 1), index.sent([1, 2, 3], one, 3), index.sent([7], one, 0)]
    index.removed(one)
    late[0].first_byte()
    place(index, [4], two)
    place(index, [5], two)
    place(index, [6], three)  # has the number that has become free
    late[1].first_byte()
    late[2].ended(None)
    assert [index.match([block], [one, two, three]) for block in (1, 7, 6)] == [[0] * 3, [0] * 3, [0, 0, 1]]
    assert len(index) == len(index._locations) == 3
    assert index._pending == 0


def test_a_report_of_nothing_never_counts_blocks_that_are_not_there() -> None:
    """A prompt longer than what its endpoint's cache holds now, reported as not cached again and again."""
    several = endpoints(4)
    index = index_of(400)
    chain = list(range(150))
    for endpoint in several * 2:
        place(index, chain, endpoint, cached=1.0)
    for number in range(40):
        for endpoint in several:
            place(index, [10_000 + number * 100 + at for at in range(60)], endpoint, cached=0.0)
            assert place(index, chain, endpoint, cached=0.0)
        assert index._size == sum(cache.size() for cache in index._caches.values())


def test_a_report_of_a_removed_endpoint_changes_nothing() -> None:
    first, second = endpoints(2)
    index = index_of(400)
    chain = list(range(50))
    for _ in range(2):
        place(index, chain, first, cached=1.0)
    place(index, list(range(100, 200)), first, cached=0.0)
    placement = index.sent(chain, first, 50)
    placement.first_byte()
    index.removed(first)
    for _ in range(20):
        place(index, [*range(1000, 1030)], second)
    placement.ended(Usage(1000, 1, 0))
    held = sum(cache.size() for cache in (*index._caches.values(), *index._removed))
    assert index._size == held
