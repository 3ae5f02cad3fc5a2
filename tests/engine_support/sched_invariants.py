"""What must hold of scheduler and KV cache between any two calls. Reads private state: that is its purpose."""

from __future__ import annotations

from collections import Counter
from operator import attrgetter

from blade_llm.cache.blocks import BlockPool
from blade_llm.scheduling.request import NO_ROW, Status
from blade_llm.scheduling.scheduler import Scheduler

# Called a hundred thousand times, for dozens of requests each: attributes are read in C.
_ORDER = attrgetter("priority", "arrival")
_ROW = attrgetter("row")
_BLOCKS = attrgetter("block_table")


def check_invariants(scheduler: Scheduler) -> None:
    """Raises AssertionError with what is broken."""
    _check_requests(scheduler)
    _check_rows(scheduler)
    _check_blocks(scheduler)
    check_pool(scheduler.cache.pool)


def _check_requests(scheduler: Scheduler) -> None:
    running, waiting = list(scheduler._running), list(scheduler._waiting)
    assert set(map(id, running + waiting)) == set(map(id, scheduler._requests.values()))
    assert len(running) + len(waiting) == len(scheduler._requests)
    launched: Counter[int] = Counter()
    drawing: Counter[int] = Counter()
    for step in scheduler._launched.values():
        for share, request in zip(step.rows, step.requests, strict=True):
            launched[id(request)] += 1
            drawing[id(request)] += share.sample and 1 + share.drafts
    for queue, status in ((running, Status.RUNNING), (waiting, Status.WAITING)):
        orders = list(map(_ORDER, queue))
        assert orders == sorted(orders), "out of order"
        for request in queue:
            assert request.status is status
            assert launched[id(request)] == request.steps_in_flight, "steps in flight miscounted"
            assert drawing[id(request)] == request.num_in_flight, "tokens in flight miscounted"
            assert len(request.token_ids) + request.num_in_flight <= request.max_total, "scheduled beyond its end"
    for step in scheduler._launched.values():
        assert sum(row.count for row in step.rows) <= scheduler.config.max_batch_tokens, "over the token budget"


def _check_rows(scheduler: Scheduler) -> None:
    rows = [request.row for request in scheduler._running]
    assert sorted(rows + scheduler._free_rows) == list(range(scheduler.config.max_num_seqs)), "rows lost or shared"
    assert set(map(_ROW, scheduler._waiting)) <= {NO_ROW}


def _check_blocks(scheduler: Scheduler) -> None:
    cache, pool = scheduler.cache, scheduler.cache.pool
    holders = Counter(block for request in scheduler._running for block in request.block_table)
    counted = [holders.get(block, 0) for block in range(pool.num_blocks)]
    assert pool._ref_counts == counted, "wrong reference counts"
    for request in scheduler._running:
        table = request.block_table
        assert len(set(table)) == len(table), "a block twice in one table"
        launched = len(request.token_ids) + request.num_in_flight - 1 if request.decoding else request.num_computed
        assert cache.blocks_for(launched) <= len(table), "computed beyond its blocks"
        for block in table[request.num_registered :]:
            assert counted[block] == 1, "a block that is still written is shared"
    assert not any(map(_BLOCKS, scheduler._waiting))


def check_pool(pool: BlockPool) -> None:
    """The free list holds exactly the unheld blocks, and the digests lead to blocks that carry them."""
    unheld = {block for block in range(pool.num_blocks) if pool.ref_count(block) == 0}
    blank, reusable = set(pool._blank), set(pool._reusable)
    assert len(blank) == len(pool._blank)
    assert blank.isdisjoint(reusable)
    assert blank | reusable == unheld
    assert pool.num_free == len(unheld)
    assert all(pool.digest(block) is None for block in blank)
    assert all(pool.digest(block) is not None for block in reusable)
    named = {digest: block for block in range(pool.num_blocks) if (digest := pool.digest(block)) is not None}
    assert named == pool._by_digest
