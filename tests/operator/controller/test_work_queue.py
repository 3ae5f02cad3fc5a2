"""The work queue: deduplicated keys, one worker per key, exponential back-off on failure."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from blade_operator import backoff
from blade_operator.controller.work_queue import Priority, WorkQueue


async def _next(queue: WorkQueue[str]) -> str | None:
    try:
        return await asyncio.wait_for(queue.get(), 0.05)
    except TimeoutError:
        return None


async def test_a_key_added_often_is_handed_out_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in ("a", "b", "a", "a"):
        queue.add(key)
    assert [await _next(queue) for _ in range(3)] == ["a", "b", None]


async def test_a_key_added_while_it_is_processed_is_queued_again_afterwards_and_not_before() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert await _next(queue) == "a"
    queue.add("a")
    queue.add("a")
    assert await _next(queue) is None
    queue.done("a")
    assert await _next(queue) == "a"
    queue.done("a")
    assert await _next(queue) is None


async def test_the_earlier_of_two_delayed_adds_counts_and_an_add_replaces_it() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 60)
    queue.add_after("a", 0.01)
    queue.add_after("a", 60)
    assert await asyncio.wait_for(queue.get(), 5) == "a"
    queue.done("a")
    queue.add_after("b", 0.01)
    queue.add("b")
    assert await _next(queue) == "b"
    queue.done("b")
    await asyncio.sleep(0.03)
    assert await _next(queue) is None


async def test_failures_back_off_exponentially_up_to_a_limit_until_one_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue: WorkQueue[str] = WorkQueue()
    waits = [queue.add_rate_limited("a") for _ in range(14)]
    assert all(later > earlier for earlier, later in itertools.pairwise(waits[:7]))
    assert max(waits) <= backoff.CAP * 1.2
    queue.forget("a")
    assert queue.add_rate_limited("a") <= waits[0] * 1.5
    queue.close()


async def test_changes_go_before_resyncs() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in ("a", "b", "c"):
        queue.add(key, Priority.RESYNC)
    queue.add("c")
    queue.add("d")
    queue.add("d", Priority.RESYNC)
    assert len(queue) == 4
    assert [await _next(queue) for _ in range(5)] == ["c", "d", "a", "b", None]


async def test_scaling_goes_before_changes_and_the_highest_priority_of_a_key_counts() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("resync", Priority.RESYNC)
    queue.add("change")
    queue.add("up", Priority.RESYNC)
    queue.add("up", Priority.SCALING)
    queue.add("up")
    queue.add("later")
    assert len(queue) == 4
    assert [await _next(queue) for _ in range(5)] == ["up", "change", "later", "resync", None]


async def test_a_key_keeps_the_priority_with_which_it_was_added_while_it_was_processed() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    queue.add("b")
    assert await _next(queue) == "a"
    queue.add("a", Priority.SCALING)
    queue.add("a", Priority.RESYNC)
    queue.done("a")
    assert [await _next(queue) for _ in range(2)] == ["a", "b"]
    queue.add("b", Priority.RESYNC)
    queue.add("c")
    queue.done("b")
    assert [await _next(queue) for _ in range(2)] == ["c", "b"]


async def test_of_two_delayed_adds_the_earlier_time_and_the_higher_priority_count() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 0.01, Priority.RESYNC)
    queue.add_after("a", 60)
    queue.add_after("b", 60)
    queue.add_after("b", 0.01, Priority.RESYNC)
    await asyncio.sleep(0.03)
    queue.add("c", Priority.RESYNC)
    queue.add("d")
    assert {await _next(queue) for _ in range(3)} == {"a", "b", "d"}
    assert await _next(queue) == "c"


async def test_a_key_backs_off_from_its_failure_until_it_is_tried_again() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 60)
    assert not queue.backs_off("a")
    queue.add_rate_limited("a", at_least=30.0)
    assert queue.backs_off("a")
    queue.add("a")
    assert not queue.backs_off("a")
    queue.close()


async def test_the_server_may_demand_a_longer_delay() -> None:
    queue: WorkQueue[str] = WorkQueue()
    assert queue.add_rate_limited("a", at_least=30.0) == 30.0
    queue.close()


async def test_many_workers_never_share_a_key() -> None:
    queue: WorkQueue[int] = WorkQueue()
    busy: set[int] = set()
    seen: list[int] = []

    async def work() -> None:
        while True:
            key = await queue.get()
            assert key not in busy
            busy.add(key)
            seen.append(key)
            await asyncio.sleep(0.001)
            busy.discard(key)
            queue.done(key)

    workers = [asyncio.create_task(work()) for _ in range(5)]
    for number in range(300):
        queue.add(number % 7)
        if number % 10 == 0:
            await asyncio.sleep(0.0005)
    await asyncio.sleep(0.1)
    errors: list[Any] = [worker.exception() for worker in workers if worker.done()]
    for worker in workers:
        worker.cancel()
    assert errors == []
    assert set(seen) == set(range(7))
