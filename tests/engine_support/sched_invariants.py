"""What must hold of scheduler and KV cache between any two calls. Reads private state: that is its purpose."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from operator import attrgetter

from blade_llm.cache.blocks import BlockPool
from blade_llm.scheduling.images.encoding import ImageEncoding
from blade_llm.scheduling.phase import RUNNING_PHASES, WAITING_PHASES, Phase
from blade_llm.scheduling.request import NO_BARRIER, NO_SLOT, Request
from blade_llm.scheduling.request_sets import RequestSets
from blade_llm.scheduling.scheduler import Scheduler

# Called a hundred thousand times, for dozens of requests each: attributes are read in C.
_ORDER = attrgetter("priority", "arrival")
_SLOT = attrgetter("slot")


def check_invariants(scheduler: Scheduler) -> None:
    """Raises AssertionError with what is broken."""
    _check_requests(scheduler)
    _check_slots(scheduler)
    _check_blocks(scheduler)
    check_pool(scheduler.cache.pool)
    if scheduler.images is not None:
        _check_images(scheduler, scheduler.images)


def _check_requests(scheduler: Scheduler) -> None:
    sets = scheduler._sets
    running, waiting = list(sets.running), list(sets.waiting)
    live = set(map(id, scheduler._requests.values()))
    assert set(map(id, running + waiting)) == live
    assert len(running) + len(waiting) == len(live)
    launched: Counter[int] = Counter()
    in_flight: Counter[int] = Counter()
    for step in scheduler._launched.values():
        for chunk, request in zip(step.chunks, step.requests, strict=True):
            launched[id(request)] += 1
            in_flight[id(request)] += chunk.sample and 1 + chunk.num_draft_tokens
    for queue, phases in ((running, RUNNING_PHASES), (waiting, WAITING_PHASES)):
        orders = list(map(_ORDER, queue))
        assert orders == sorted(orders), "out of order"
        for request in queue:
            assert request.phase in phases
            assert launched[id(request)] == request.steps_in_flight, "steps in flight miscounted"
            assert in_flight[id(request)] == request.num_in_flight, "tokens in flight miscounted"
            if not request.is_beam_search:
                assert len(request.token_ids) + request.num_in_flight <= request.max_total, "scheduled beyond its end"
    for step in scheduler._launched.values():
        assert sum(chunk.count for chunk in step.chunks) <= scheduler.config.max_batch_tokens, "over the token budget"


def _slots_of(sets: RequestSets, request: Request) -> list[int]:
    group = sets.beam_groups.get(request)
    if group is None:
        return [request.slot]
    return group.spare_slots + ([beam.slot for beam in group.beams] or [request.slot])


def _check_slots(scheduler: Scheduler) -> None:
    sets = scheduler._sets
    slots = [slot for request in sets.running for slot in _slots_of(sets, request)]
    assert sorted(slots + sets.free_slots) == list(range(scheduler.config.max_num_seqs)), "slots lost or shared"
    assert set(map(_SLOT, sets.waiting)) <= {NO_SLOT}


def _check_blocks(scheduler: Scheduler) -> None:
    cache, pool, sets = scheduler.cache, scheduler.cache.pool, scheduler._sets
    tables = [request.block_table for request in sets.running]
    groups = [group for request, group in sets.beam_groups.items() if request.is_running]
    tables += [beam.blocks for group in groups for beam in group.beams]
    in_tables = Counter(block for table in tables for block in table)
    held = Counter(sets.held_blocks())
    counted = [in_tables.get(block, 0) + held.get(block, 0) for block in range(pool.num_blocks)]
    assert pool._ref_counts == counted, "wrong reference counts"
    for table in tables:
        assert len(set(table)) == len(table), "a block twice in one table"
    for request in sets.running:
        if request.is_beam_search:
            continue
        table = request.block_table
        ahead = request.phase is Phase.DECODE
        launched = len(request.token_ids) + request.num_in_flight - 1 if ahead else request.num_computed
        assert cache.blocks_for(launched) <= len(table), "computed beyond its blocks"
        for block in table[launched // cache.block_size :]:
            assert in_tables[block] == 1, "a block that is still written is shared"
    for request in sets.waiting:
        assert not request.block_table
        assert not request.is_beam_search or not sets.beam_groups[request].beams


def _check_images(scheduler: Scheduler, images: ImageEncoding) -> None:
    """Images are held as often as they are needed, and no request gets stuck at one that is encoded."""
    remaining, run, cache = images._remaining, images._run, images.cache
    held = Counter(each.digest for part in remaining.values() for each in islice(part.images, part.held))
    held.update(() if run is None else run.digests)
    holders = {digest: entry.holders for digest, entry in cache._entries.items() if entry.holders}
    assert holders == dict(held), "images miscounted"
    assert cache.used <= cache.capacity, "the encoder cache is too full"
    assert cache.used == sum(entry.nbytes for entry in cache._entries.values())
    assert list(images._queue) == sorted(remaining, key=_ORDER)
    running = [request for request in scheduler._sets.running if request.images]
    for request in running:
        left = [image for image in request.images if image.end > request.num_computed]
        missing = [image.start for image in left if not cache.is_ready(image.digest)]
        assert request.image_barrier == min(missing, default=NO_BARRIER), "waits for the wrong image"
        assert request.phase is not Phase.PREFILL or (left == list(remaining[request].images if left else []))
    live = {image.digest for request in scheduler._requests.values() for image in request.images}
    assert set(images._pixels) == live, "pixels of nobody, or none of somebody"
    assert images.pixel_bytes == sum(len(each.pixels.pixels) for each in images._pixels.values())


def check_pool(pool: BlockPool) -> None:
    """The free list holds exactly the unheld blocks, and the digests lead to blocks that carry them."""
    unheld = {block for block in range(pool.num_blocks) if pool.ref_count(block) == 0}
    empty, evictable = set(pool._empty), set(pool._evictable)
    assert len(empty) == len(pool._empty)
    assert empty.isdisjoint(evictable)
    assert empty | evictable == unheld
    assert pool.num_free == len(unheld)
    assert all(pool.digest(block) is None for block in empty)
    assert all(pool.digest(block) is not None for block in evictable)
    named = {digest: block for block in range(pool.num_blocks) if (digest := pool.digest(block)) is not None}
    assert named == pool._by_digest
