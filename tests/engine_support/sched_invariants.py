"""What must hold of scheduler and KV cache between any two calls. Reads private state: that is its purpose."""

from __future__ import annotations

from collections import Counter
from operator import attrgetter

from blade_llm.cache.blocks import BlockPool
from blade_llm.scheduling.request import NO_ROW, Request, Status
from blade_llm.scheduling.scheduler import Scheduler

# Called a hundred thousand times, for dozens of requests each: attributes are read in C.
_ORDER = attrgetter("priority", "arrival")
_ROW = attrgetter("row")


def check_invariants(scheduler: Scheduler) -> None:
    """Raises AssertionError with what is broken."""
    _check_requests(scheduler)
    _check_rows(scheduler)
    _check_blocks(scheduler)
    check_pool(scheduler.cache.pool)


def _check_requests(scheduler: Scheduler) -> None:
    residents = scheduler._residents
    running, waiting = list(residents.running), list(residents.waiting)
    live = set(map(id, scheduler._requests.values()))
    assert set(map(id, running + waiting)) == live
    assert len(running) + len(waiting) == len(live)
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
            if request.beams is None:
                assert len(request.token_ids) + request.num_in_flight <= request.max_total, "scheduled beyond its end"
    for step in scheduler._launched.values():
        assert sum(row.count for row in step.rows) <= scheduler.config.max_batch_tokens, "over the token budget"


def _rows_of(request: Request) -> list[int]:
    beams = request.beams
    if beams is None:
        return [request.row]
    return beams.spare_rows + ([lane.row for lane in beams.lanes] or [request.row])


def _check_rows(scheduler: Scheduler) -> None:
    residents = scheduler._residents
    rows = [row for request in residents.running for row in _rows_of(request)]
    assert sorted(rows + residents.free_rows) == list(range(scheduler.config.max_num_seqs)), "rows lost or shared"
    assert set(map(_ROW, residents.waiting)) <= {NO_ROW}


def _check_blocks(scheduler: Scheduler) -> None:
    cache, pool, residents = scheduler.cache, scheduler.cache.pool, scheduler._residents
    tables = [request.block_table for request in residents.running]
    beams = [request.beams for request in residents.running if request.beams is not None]
    tables += [lane.blocks for each in beams for lane in each.lanes]
    in_tables = Counter(block for table in tables for block in table)
    held = Counter(residents.held())
    counted = [in_tables.get(block, 0) + held.get(block, 0) for block in range(pool.num_blocks)]
    assert pool._ref_counts == counted, "wrong reference counts"
    for table in tables:
        assert len(set(table)) == len(table), "a block twice in one table"
    for request in residents.running:
        if request.beams is not None:
            continue
        table = request.block_table
        launched = len(request.token_ids) + request.num_in_flight - 1 if request.decoding else request.num_computed
        assert cache.blocks_for(launched) <= len(table), "computed beyond its blocks"
        for block in table[launched // cache.block_size :]:
            assert in_tables[block] == 1, "a block that is still written is shared"
    for request in residents.waiting:
        assert not request.block_table
        assert request.beams is None or not request.beams.lanes


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
