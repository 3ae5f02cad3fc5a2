"""Reference counts, the free list as LRU, and what sharing does to both."""

import pytest
from engine_support.sched_invariants import check_pool
from hypothesis import given
from hypothesis import strategies as st

from blade_llm.cache.blocks import BlockPool
from blade_llm.cache.events import KVEvents


def digest(number: int) -> bytes:
    return number.to_bytes(32, "little")


def take(pool: BlockPool) -> int:
    block = pool.allocate()
    assert block is not None
    return block


def test_every_block_is_handed_out_once() -> None:
    pool = BlockPool(3)
    assert {take(pool) for _ in range(3)} == {0, 1, 2}
    assert pool.allocate() is None
    assert pool.num_free == 0


def test_a_shared_block_is_free_when_the_last_holder_releases_it() -> None:
    pool = BlockPool(1)
    block = take(pool)
    pool.share(block)
    pool.release([block])
    assert pool.num_free == 0
    pool.release([block])
    assert pool.num_free == 1


def test_releasing_too_often_is_an_error() -> None:
    pool = BlockPool(1)
    block = take(pool)
    pool.release([block])
    with pytest.raises(ValueError, match="released more often"):
        pool.release([block])


def test_a_free_block_is_found_until_it_is_evicted() -> None:
    pool = BlockPool(1)
    block = take(pool)
    pool.register(block, digest(1))
    pool.release([block])
    assert pool.find(digest(1)) == block
    pool.share(block)
    assert pool.num_free == 0
    pool.release([block])
    take(pool)
    assert pool.find(digest(1)) is None


def test_blank_blocks_go_first_and_then_the_least_recently_released() -> None:
    pool = BlockPool(4)
    first, second, third, blank = (take(pool) for _ in range(4))
    for number, block in enumerate((first, second, third)):
        pool.register(block, digest(number))
    pool.release([second, first, third, blank])
    pool.share(second)
    pool.release([second])  # used again: now the most recent
    assert [pool.allocate() for _ in range(4)] == [blank, first, third, second]


def test_of_two_blocks_with_equal_contents_the_first_is_found() -> None:
    pool = BlockPool(2)
    first, second = take(pool), take(pool)
    pool.register(first, digest(1))
    pool.register(second, digest(1))
    assert pool.find(digest(1)) == first
    pool.release([first, second])
    assert [pool.allocate(), pool.allocate()] == [second, first]  # the other one is of no further use


def test_events_report_what_can_be_found() -> None:
    events = KVEvents()
    pool = BlockPool(1, events)
    block = take(pool)
    pool.register(block, digest(2))
    pool.release([block])
    assert list(pool.cached_digests()) == [digest(2)]
    assert events.drain() == (digest(2)[:8], b"", False)
    pool.register(take(pool), digest(3))
    assert events.drain() == (digest(3)[:8], digest(2)[:8], False)
    assert not events.pending
    assert events.drain() == (b"", b"", False)


def test_a_cleared_pool_finds_only_what_is_held() -> None:
    events = KVEvents()
    pool = BlockPool(3, events)
    free, held = take(pool), take(pool)
    for number, block in enumerate((free, held)):
        pool.register(block, digest(number))
    pool.release([free])
    events.drain()
    pool.clear()
    check_pool(pool)
    assert list(pool.cached_digests()) == [digest(1)]
    assert events.drain() == (b"", digest(0)[:8], False)
    assert pool.num_free == 2


def test_of_one_block_the_last_change_counts() -> None:
    events = KVEvents()
    for change in (events.stored, events.removed, events.stored):
        change(digest(1))
    events.stored(digest(2))
    events.removed(digest(2))
    assert events.drain() == (digest(1)[:8], digest(2)[:8], False)


def test_a_slow_subscriber_sees_that_it_lost_events() -> None:
    events = KVEvents(capacity=2)
    for number in range(3):
        events.removed(digest(number))
    assert events.pending
    assert events.drain() == (b"", b"", True)
    events.stored(digest(1))
    assert events.drain() == (digest(1)[:8], b"", False)


@given(
    st.lists(
        st.tuples(st.sampled_from(["take", "release", "register", "share", "clear"]), st.integers(0, 7)), max_size=80
    )
)
def test_any_order_of_calls_keeps_the_pool_consistent(calls: list[tuple[str, int]]) -> None:
    pool = BlockPool(5)
    held: list[int] = []
    for call, number in calls:
        if call == "take":
            block = pool.allocate()
            assert (block is None) == (len(set(held)) == 5)
            held += [] if block is None else [block]
        elif call == "share" and (found := pool.find(digest(number))) is not None:
            pool.share(found)
            held.append(found)
        elif call == "release" and held:
            pool.release([held.pop(number % len(held))])
        elif call == "register" and held and pool.digest(held[number % len(held)]) is None:
            pool.register(held[number % len(held)], digest(number))
        elif call == "clear":
            pool.clear()
            assert all(pool.ref_count(pool.find(known) or 0) for known in pool.cached_digests())
        check_pool(pool)
        assert [pool.ref_count(block) for block in range(5)] == [held.count(block) for block in range(5)]
