"""A key that needs some slots again and again finds them free, whoever wants the rest."""

import os

import pytest
from router_support.fairness import STEP_SECONDS, FairFleet, Stream

from blade_router.admission.capacity.recent_demand import HALF_SECONDS, RecentDemand
from blade_router.admission.capacity.slots import WIDTH
from blade_router.workers.shared_memory import SharedColumns, SharedMemory

MINUTE = int(2 * HALF_SECONDS / STEP_SECONDS)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Callers:
    """Clients of one key: each sends a request of 20 tokens, and after a pause another."""

    PAUSE = 5

    def __init__(self, fleet: FairFleet, count: int, *, router: int = 0) -> None:
        self.fleet = fleet
        self.router = router
        self.next_at = [fleet.now + 3 * place for place in range(count)]
        self.current: list[Stream | None] = [None] * count
        self.delays: list[int] = []

    async def step(self) -> None:
        for place, stream in enumerate(self.current):
            if stream is not None and stream.done:
                assert stream.delay is not None
                self.delays.append(stream.delay)
                self.current[place] = None
                self.next_at[place] = self.fleet.now + self.PAUSE
            if self.current[place] is None and self.fleet.now >= self.next_at[place]:
                (self.current[place],) = await self.fleet.send("light", 1, 20, router=self.router)


async def hog(fleet: FairFleet, streams: list[Stream], *, router: int = 0) -> None:
    """200 streams of 100 tokens, all the time."""
    missing = 200 - sum(not stream.done for stream in streams)
    if missing:
        streams += await fleet.send("heavy", missing, 100, router=router)


async def served(fleet: FairFleet, callers: Callers, *, hog_on: int = 0) -> list[int]:
    """The delays of the callers' first tokens, from when everybody has been there for a while."""
    streams: list[Stream] = []
    for step in range(900):
        await hog(fleet, streams, router=hog_on)
        await callers.step()
        await fleet.run(1)
        if step == 300:
            callers.delays.clear()
    return sorted(callers.delays)


async def test_eight_callers_find_slots_beside_two_hundred_streams() -> None:
    fleet = FairFleet(engines=4, slots=16)
    delays = await served(fleet, Callers(fleet, 8))
    assert len(delays) > 100
    assert delays[-1] <= 2, "steps until the first token, one of which it takes"
    assert fleet.held("heavy") >= 48, "the others are not kept free"


async def test_in_whichever_worker_they_are() -> None:
    file = os.memfd_create("test")
    os.ftruncate(file, 4 << 20)
    try:
        rows = [SharedColumns(SharedMemory(file, worker, 2), "slots", 4, WIDTH).open("") for worker in range(2)]
        fleet = FairFleet(engines=4, slots=16, rows=rows)
        callers = Callers(fleet, 8, router=1)
        delays = await served(fleet, callers)
        assert delays[int(0.9 * len(delays))] <= 4, delays
    finally:
        os.close(file)


async def test_what_nobody_has_needed_for_a_minute_is_not_kept() -> None:
    fleet = FairFleet(engines=4, slots=16)
    streams: list[Stream] = []
    await fleet.send("light", 8, 2)
    await hog(fleet, streams)
    await fleet.run(10)
    kept = fleet.held("heavy")
    for _ in range(0, MINUTE, 20):
        await hog(fleet, streams)
        await fleet.run(20)
    await hog(fleet, streams)
    await fleet.run(1)
    assert fleet.held("heavy") == 56, f"{kept} before"


def test_the_busiest_key_and_what_exceeds_a_fair_share_do_not_count() -> None:
    demand = RecentDemand(Clock())
    demand.total = 30
    for key, count in (("c", 3), ("a", 100), ("b", 50)):
        for _ in range(count):
            demand.add(key, 1.0)
    assert demand.peak() == 10 + 3
    assert demand.fair_share("a", 1.0) == 10
    assert demand.fair_share("new", 2.0) == pytest.approx(12)


def test_what_a_key_had_alone_counts_for_another_that_comes_later() -> None:
    demand = RecentDemand(Clock())
    demand.total = 30
    for _ in range(8):
        demand.add("light", 1.0)
    for _ in range(8):
        demand.remove("light")
    assert demand.peak() == 0
    assert demand.peak_of_another("light") == 0
    assert demand.peak_of_another("heavy") == 8
    for _ in range(20):
        demand.add("heavy", 1.0)
    assert demand.peak_of_another("heavy") == 8
    assert demand.peak_of_another("light") == 20


async def test_a_client_that_pauses_finds_its_slots_when_it_comes_back() -> None:
    fleet = FairFleet(engines=4, slots=16)
    await fleet.send("light", 12, 2)
    await fleet.run(5)
    await hog(fleet, [])
    await fleet.run(10)
    assert fleet.held("heavy") == 64 - 12 - 1
    again = await fleet.send("light", 12, 2)
    await fleet.run(1)
    assert [stream.delay for stream in again] == [1] * 12


def test_keys_that_take_turns_do_not_add_up() -> None:
    demand = RecentDemand(Clock())
    demand.total = 30
    demand.add("busy", 1.0)
    for number in range(100):
        demand.add(f"key {number}", 1.0)
        demand.remove(f"key {number}")
    assert demand.peak() == 1


def test_a_peak_is_forgotten_after_a_minute() -> None:
    clock = Clock()
    demand = RecentDemand(clock)
    demand.total = 30
    for _ in range(3):
        demand.add("light", 1.0)
        demand.add("heavy", 1.0)
    assert demand.peak() == 3
    for _ in range(3):
        demand.remove("light")
    clock.now += HALF_SECONDS
    assert demand.peak() == 3
    clock.now += HALF_SECONDS
    demand.add("heavy", 1.0)
    assert demand.peak() == 0
