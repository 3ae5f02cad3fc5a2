"""The queue of a service: bounded, fair between keys, in bands, and without clients that have left."""

import asyncio
from collections import Counter
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from router_support.fairness import enter

from blade_protocol.routing import EndpointConfig, QueueConfig
from blade_router.admission.capacity.start_window import INITIAL
from blade_router.admission.request_queue import UNQUEUED, QueuedRequest, RequestQueue
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.http.client import Client
from blade_router.http.errors import ClientGone, Refused


class FakeClient:
    """A client as the queue sees it."""

    def __init__(self) -> None:
        self.work: Any = None

    def attach(self, work: Any) -> None:
        self.work = work

    def detach(self) -> None:
        self.work = None

    def leave(self) -> None:
        self.work.abort(ClientGone())


class Bench:
    """A queue over endpoints that are there when the test says so, with a clock that the test moves."""

    def __init__(self, endpoints: int = 1, **config: Any) -> None:
        self.now = 1000.0
        self.set = EndpointSet()
        self.show(endpoints)
        self.queue = RequestQueue(
            self.set, "", QueueConfig(**{"endpoint_requests": 1, **config}), clock=lambda: self.now
        )
        self.set.listeners.append(self.queue.update_capacity)
        self.granted: list[str] = []

    def show(self, count: int) -> None:
        """Add ``count`` endpoints, all of them up."""
        self.set.update([EndpointConfig(url=f"http://10.0.0.{number}:80") for number in range(count)])
        for endpoint in self.set.all:
            endpoint.health.mark_up()

    def enter(
        self,
        key: str = "a",
        *,
        tokens: int = 100,
        weight: float = 1.0,
        priority: int = 0,
        size: int = 1,
        streams: bool = False,
    ) -> tuple["asyncio.Task[QueuedRequest]", FakeClient]:
        client = FakeClient()
        entering = enter(self.queue, key, weight, priority, size, tokens, cast(Client, client), streams=streams)
        return asyncio.create_task(entering, name=key), client

    async def enters(self, count: int, key: str = "a", **extra: Any) -> list["asyncio.Task[QueuedRequest]"]:
        tasks = [self.enter(key, **extra)[0] for _ in range(count)]
        await asyncio.sleep(0)
        return tasks

    @property
    def waiting(self) -> int:
        return self.queue.state().requests


def done(tasks: list["asyncio.Task[QueuedRequest]"]) -> int:
    return sum(task.done() for task in tasks)


async def turn() -> None:
    """Let woken tasks run."""
    for _ in range(3):
        await asyncio.sleep(0)


# how many wait, and for how long


async def test_switched_off_there_is_no_queue() -> None:
    bench = Bench(enabled=False)
    tasks = await bench.enters(3)
    assert [task.result() for task in tasks] == [UNQUEUED] * 3
    UNQUEUED.release()
    assert bench.waiting == 0


async def test_as_many_run_as_the_endpoints_take_and_one_is_admitted_when_one_ends() -> None:
    bench = Bench(endpoints=2, endpoint_requests=2)
    tasks = await bench.enters(7)
    assert (done(tasks), bench.waiting) == (4, 3)
    queued = tasks[0].result()
    queued.release()
    queued.release()
    await turn()
    assert (done(tasks), bench.waiting) == (5, 2), "leaving twice frees one place"
    assert bench.queue.state().running == 4


async def test_endpoints_that_come_and_go_change_the_capacity_at_once() -> None:
    bench = Bench(endpoints=1)
    tasks = await bench.enters(5)
    assert done(tasks) == 1
    bench.show(3)
    await turn()
    assert done(tasks) == 3
    bench.set.all[0].health.mark_down("gone")
    tasks[0].result().release()
    await turn()
    assert done(tasks) == 3, "two endpoints have the two that are left"
    bench.set.all[1].health.mark_draining()
    assert bench.queue.state().capacity == 1
    bench.set.all[0].health.mark_up()
    bench.set.all[1].health.mark_up()
    await turn()
    assert done(tasks) == 4


async def test_limits_can_change_and_go_while_requests_wait() -> None:
    bench = Bench()
    tasks = await bench.enters(6)
    bench.queue.configure(QueueConfig(endpoint_requests=4), routers=2)
    await turn()
    assert done(tasks) == 2, "two routers share four places"
    bench.queue.configure(QueueConfig(endpoint_requests=4))
    await turn()
    assert done(tasks) == 4
    bench.queue.configure(QueueConfig())
    await turn()
    assert done(tasks) == 6


async def test_without_any_endpoint_no_request_queues() -> None:
    bench = Bench(endpoints=0)
    assert done(await bench.enters(3)) == 3


async def test_when_the_last_endpoint_goes_nobody_waits_for_it() -> None:
    """What was queued goes on at once, as what comes then does: to the pending-request buffer, or to a 503."""
    bench = Bench(endpoints=1)
    tasks = await bench.enters(4)
    assert done(tasks) == 1
    bench.show(0)
    await turn()
    assert (done(tasks), bench.waiting) == (4, 0)


async def test_slots_are_borrowed_when_it_is_slots_that_lack() -> None:
    bench = Bench(endpoint_requests=INITIAL + 2)
    bench.queue.configure(QueueConfig(endpoint_requests=INITIAL + 2, key_share=1.0), several_keys=True)
    wanted: list[int] = []

    async def borrow(slots: int) -> bool:
        wanted.append(slots)
        return False

    bench.queue.borrow = borrow
    tasks = await bench.enters(INITIAL + 3, streams=True)
    await turn()
    assert (done(tasks), wanted) == (INITIAL, []), "two slots are free: it is first tokens that the others wait for"
    for task in tasks[:INITIAL]:
        task.result().first_token()
    await turn()
    assert (done(tasks), wanted) == (INITIAL + 2, [1])


async def test_full_queue_sends_retry_after() -> None:
    bench = Bench(max_requests=4)
    (running,) = await bench.enters(1)
    for _ in range(10):  # two requests end per second
        bench.now += 0.5
        running.result().release()
        (running,) = await bench.enters(1)
    await bench.enters(4)
    (late,) = await bench.enters(1)
    with pytest.raises(Refused) as refused:
        await late
    assert (refused.value.status, refused.value.code) == (429, "queue_full")
    assert refused.value.retry_after in (2, 3), "five are before it, at two a second"


async def test_full_queue_that_does_not_move_sends_a_minute() -> None:
    bench = Bench(max_requests=1)
    await bench.enters(2)
    with pytest.raises(Refused) as refused:
        await (await bench.enters(1))[0]
    assert refused.value.retry_after == 60


async def test_bytes_are_bounded() -> None:
    bench = Bench(max_bytes=100)
    tasks = await bench.enters(2, size=90)
    (late,) = await bench.enters(1, size=11)
    assert isinstance(late.exception(), Refused)
    (small,) = await bench.enters(1, size=10)
    assert not small.done()
    assert bench.queue.state().bytes == 100
    tasks[0].result().release()
    assert bench.queue.state().bytes == 10


async def test_too_old_is_refused_with_503() -> None:
    bench = Bench(max_age=0.05)
    tasks = await bench.enters(2)
    bench.now += 0.04
    tasks += await bench.enters(1)
    bench.now += 0.02
    with pytest.raises(Refused) as refused:
        await tasks[1]  # the queue's own timer has it
    assert (refused.value.status, refused.value.code) == (503, "queue_timeout")
    assert refused.value.retry_after is not None
    assert not tasks[2].done()
    assert bench.waiting == 1


async def test_client_that_disconnects_is_out_at_once() -> None:
    bench = Bench()
    (running,) = await bench.enters(1)
    gone, client = bench.enter()
    stays, _ = bench.enter("b")
    await turn()
    client.leave()
    assert bench.waiting == 1, "before anything else runs"
    with pytest.raises(ClientGone):
        await gone
    running.result().release()
    await stays
    assert client.work is None


async def test_cancelled_request_gives_its_place_back() -> None:
    bench = Bench()
    (running,) = await bench.enters(1)
    first, _ = bench.enter()
    second, _ = bench.enter()
    await turn()
    running.result().release()  # grants the first, which is cancelled before it runs
    first.cancel()
    await asyncio.wait((first, second))
    assert second.result().running
    assert bench.queue.state().running == 1


async def test_state_shows_ages() -> None:
    bench = Bench()
    await bench.enters(1)
    for _ in range(100):
        await bench.enters(1, tokens=5)
        bench.now += 1.0
    state = bench.queue.state()
    assert (state.requests, state.tokens, state.bytes, state.capacity) == (100, 500, 100, 1)
    assert (state.oldest_seconds, state.p95_seconds) == (100.0, 95.0)


# bands


async def test_better_band_goes_first() -> None:
    bench = Bench()
    (running,) = await bench.enters(1)
    low = await bench.enters(2, priority=5)
    high = await bench.enters(2, priority=-1)
    running.result().release()
    await turn()
    assert (done(high), done(low)) == (1, 0)
    high[0].result().release()
    await turn()
    assert (done(high), done(low)) == (2, 0)


async def test_band_that_waits_for_half_its_time_gets_every_fourth_turn() -> None:
    bench = Bench(max_age=60)
    (running,) = await bench.enters(1)
    low = await bench.enters(3, priority=1)
    high: list[asyncio.Task[QueuedRequest]] = []
    order: list[str] = []
    last = running.result()
    bench.now += 40
    for _ in range(8):
        high += await bench.enters(1, "high")
        last.release()
        await turn()
        name, band = next((name, band) for name, band in (("high", high), ("low", low)) if done(band))
        winner = next(task for task in band if task.done())
        band.remove(winner)
        order.append(name)
        last = winner.result()
    assert order.count("low") == 2


async def test_worse_band_is_evicted_from_a_full_queue() -> None:
    bench = Bench(max_requests=2)
    await bench.enters(1)
    low = await bench.enters(2, priority=1)
    high = await bench.enters(2, priority=0)
    await turn()
    assert [isinstance(task.exception(), Refused) for task in low] == [True, True]
    assert done(high) == 0
    (more,) = await bench.enters(1, priority=1)
    assert isinstance(more.exception(), Refused)


# fairness, under more load than there is room for


async def shares(offered: dict[str, tuple[int, int, float]], steps: int = 400) -> Counter[str]:
    """Tokens each key got, of offers of (requests per step, tokens, weight); one request ends per step."""
    bench = Bench(endpoints=4, max_requests=64)
    running: list[tuple[str, QueuedRequest]] = []
    waiting: list[tuple[str, asyncio.Task[QueuedRequest]]] = []
    got: Counter[str] = Counter()
    for step in range(steps):
        bench.now += 0.1
        for key, (count, tokens, weight) in offered.items():
            waiting += [(key, bench.enter(key, tokens=tokens, weight=weight)[0]) for _ in range(count)]
        await turn()
        for key, task in [each for each in waiting if each[1].done()]:
            waiting.remove((key, task))
            if task.exception() is None:
                running.append((key, task.result()))
                if step >= steps // 4:
                    got[key] += offered[key][1]
        running.pop(0)[1].release()
    for _, task in waiting:
        task.cancel()
    await asyncio.gather(*(task for _, task in waiting), return_exceptions=True)
    return got


async def test_ten_times_the_load_gets_half() -> None:
    got = await shares({"heavy": (10, 300, 1.0), "light": (1, 300, 1.0)})
    assert 0.45 <= got["light"] / got.total() <= 0.55


async def test_tokens_count_and_not_requests() -> None:
    got = await shares({"long": (5, 4000, 1.0), "short": (5, 250, 1.0)}, steps=1200)
    assert 0.45 <= got["short"] / got.total() <= 0.55


async def test_weights_count() -> None:
    got = await shares({"paid": (5, 300, 3.0), "free": (5, 300, 1.0)})
    assert 0.70 <= got["paid"] / got.total() <= 0.80


# a model of it all


actions = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.sampled_from("abc"), st.integers(0, 2), st.integers(1, 40)),
        st.tuples(st.sampled_from(["leave", "gone", "cancel", "endpoints", "limit", "sleep"]), st.integers(0, 100)),
    ),
    max_size=60,
)


@given(actions)
@settings(max_examples=100, deadline=None)
def test_places_are_neither_lost_nor_made(steps: list[tuple[Any, ...]]) -> None:
    asyncio.run(_model(steps))


async def _model(steps: list[tuple[Any, ...]]) -> None:
    bench = Bench(endpoints=2, max_requests=8, max_bytes=100, max_age=50)
    limit, endpoints = 1, 2
    alive: list[tuple[asyncio.Task[QueuedRequest], FakeClient]] = []
    for action, *values in steps:
        running = [task for task, _ in alive if task.done() and task.exception() is None]
        waiting = [(task, client) for task, client in alive if not task.done()]
        if action == "enter":
            key, priority, size = values
            alive.append(bench.enter(key, priority=priority, size=size))
        elif action == "leave" and running:
            running[values[0] % len(running)].result().release()
        elif action in ("gone", "cancel") and waiting:
            task, client = waiting[values[0] % len(waiting)]
            client.leave() if action == "gone" else task.cancel()
        elif action == "endpoints":
            endpoints = 1 + values[0] % 3
            bench.show(endpoints)
        elif action == "limit":
            limit = 1 + values[0] % 2
            bench.queue.configure(QueueConfig(endpoint_requests=limit, max_requests=8, max_bytes=100, max_age=50))
        elif action == "sleep":
            bench.now += values[0]
            bench.queue.expire()
        await turn()
        alive = [(task, client) for task, client in alive if not _over(task)]
        state = bench.queue.state()
        assert state.running == sum(task.done() for task, _ in alive)
        assert state.requests == sum(not task.done() for task, _ in alive) <= 8
        assert state.bytes <= 100
        assert state.capacity == limit * endpoints
        assert not state.requests or state.running >= state.capacity, "nobody waits beside a free place"
    for task, _ in alive:
        task.cancel()
    await asyncio.gather(*(task for task, _ in alive), return_exceptions=True)


def _over(task: "asyncio.Task[QueuedRequest]") -> bool:
    """It was refused, left, or had a place and gave it back."""
    if not task.done():
        return False
    return task.cancelled() or task.exception() is not None or not task.result().running
