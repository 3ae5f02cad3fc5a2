"""A key with hundreds of streams and one with a single request: who waits how long, in steps of an engine."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from router_support.fairness import STEP_SECONDS, FairFleet

from blade_router.admission.capacity.slots import WIDTH
from blade_router.workers.shared_memory import SharedColumns, SharedMemory, SharedRow

SECONDS = 2.0
"""In which another key's first token has to come."""
STEPS = int(SECONDS / STEP_SECONDS)
LONG = 5000
"""Tokens of a stream that outlasts every test."""


@contextmanager
def workers(count: int) -> Iterator[list[SharedRow]]:
    """The rows of so many workers about the same slots."""
    file = os.memfd_create("test")
    os.ftruncate(file, 4 << 20)
    try:
        memories = [SharedMemory(file, worker, count) for worker in range(count)]
        yield [SharedColumns(memory, "slots", 4, WIDTH).open("") for memory in memories]
    finally:
        os.close(file)


@pytest.mark.parametrize(("engines", "slots"), [(1, 8), (1, 16), (4, 32), (1, 256)])
async def test_another_key_gets_its_first_token_in_two_seconds(engines: int, slots: int) -> None:
    """By default: nothing is configured."""
    fleet = FairFleet(engines=engines, slots=slots)
    await fleet.send("heavy", 200 * engines, LONG)
    await fleet.run(50)
    (light,) = await fleet.send("light", 1, 10)
    await fleet.run(STEPS)
    assert light.delay is not None
    assert light.delay <= 2
    assert light.done
    await fleet.close()


async def test_one_key_may_have_seven_eighths_of_the_slots() -> None:
    fleet = FairFleet(slots=256)
    await fleet.send("heavy", 300, LONG)
    await fleet.run(10)
    assert fleet.held("heavy") == 224
    assert fleet.waiting_in_engines == 0


async def test_several_heavy_keys_share_and_leave_some_free() -> None:
    fleet = FairFleet(slots=256)
    for key in "abc":
        await fleet.send(key, 300, LONG)
    await fleet.run(10)
    held = [fleet.held(key) for key in "abc"]
    assert sum(held) < 256
    (light,) = await fleet.send("light", 1, 10)
    await fleet.run(2)
    assert light.delay == 1
    await fleet.run(1)
    # Those that came first had more: as their requests end, all have the same.
    for stream in fleet._streams:
        stream.tokens = min(stream.tokens, 100)
    await fleet.run(90)
    for key in "abc":
        await fleet.send(key, 300, 100)
    await fleet.run(100)
    held = [fleet.held(key) for key in "abc"]
    assert max(held) - min(held) <= 32, held


async def test_a_service_with_one_key_or_none_uses_all_slots() -> None:
    fleet = FairFleet(slots=16, several_keys=False)
    await fleet.send("only", 40, LONG)
    await fleet.run(10)
    assert fleet.held("only") == 16
    fleet = FairFleet(slots=16)
    await fleet.send("", 40, LONG)
    await fleet.run(10)
    assert fleet.held("") == 16, "without keys there is nobody to keep slots for"


async def test_the_share_of_a_key_can_be_set() -> None:
    fleet = FairFleet(slots=16, key_share=0.5)
    await fleet.send("heavy", 40, LONG)
    await fleet.run(10)
    assert fleet.held("heavy") == 8
    fleet = FairFleet(slots=16, key_share=1.0)
    await fleet.send("heavy", 40, LONG)
    await fleet.run(10)
    assert fleet.held("heavy") == 16


@pytest.mark.parametrize("engines", [1, 3])
async def test_long_prompts_of_one_key_do_not_delay_the_first_token_of_another(engines: int) -> None:
    """There are slots for all of them, but a prompt takes an engine half a second."""
    fleet = FairFleet(engines=engines, slots=256, prompt_tokens=40)
    await fleet.send("heavy", 200 * engines, LONG, prompt=1000)
    delays = []
    for _ in range(10):
        await fleet.run(70)
        (light,) = await fleet.send("light", 1, 10, prompt=40)
        await fleet.run(STEPS)
        delays.append(light.delay)
    assert all(delay is not None and delay <= STEPS for delay in delays), delays
    begun = sum(stream.first_token is not None for stream in fleet._streams if stream.key == "heavy")
    assert begun >= 0.9 * 1700 * engines * 40 / 1000, "engines were busy all the time"


async def test_short_prompts_fill_the_slots_at_once() -> None:
    fleet = FairFleet(slots=256, prompt_tokens=4000)
    await fleet.send("heavy", 300, LONG, prompt=100)
    await fleet.run(20)
    assert fleet.held("heavy") == 224


async def test_without_the_queue_the_engine_serves_in_the_order_of_arrival() -> None:
    """What the queue is for."""
    fleet = FairFleet(slots=16, enabled=False)
    await fleet.send("heavy", 200, LONG)
    (light,) = await fleet.send("light", 1, 10)
    await fleet.run(STEPS)
    assert light.delay is None


async def test_workers_use_all_slots_and_are_fair_to_each_other() -> None:
    with workers(2) as rows:
        fleet = FairFleet(slots=16, rows=rows)
        await fleet.send("heavy", 100, 40, router=0)
        await fleet.run(10)
        assert fleet.held("heavy") == 14, "one worker has the slots of both"
        (light,) = await fleet.send("light", 1, 10, router=1)
        await fleet.run(2)
        assert light.delay is not None
        await fleet.send("other", 100, 40, router=1)
        await fleet.run(200)
        assert abs(fleet.held("heavy") - fleet.held("other")) <= 4
        await fleet.close()


async def test_a_key_in_both_workers_has_no_more_than_in_one() -> None:
    with workers(2) as rows:
        fleet = FairFleet(slots=16, rows=rows)
        await fleet.send("heavy", 100, LONG, router=0)
        await fleet.send("heavy", 100, LONG, router=1)
        await fleet.run(5)
        assert fleet.held("heavy") == 14
        (light,) = await fleet.send("light", 1, 10, router=1)
        await fleet.run(2)
        assert light.delay == 1


async def test_engines_without_a_number_of_slots_are_sent_little_more_than_they_run() -> None:
    """As vLLM's and SGLang's metrics show them: no slots, but what runs and waits."""
    fleet = FairFleet(slots=16, reports=False)
    reports = [endpoint.report for endpoints in fleet._sets for endpoint in endpoints.all]
    engine = fleet.engines[0]
    await fleet.send("heavy", 20, 50)
    assert fleet.held("heavy") == 20, "nothing is known yet"
    for step in range(400):
        await fleet.run(1)
        if step % 25 == 0:  # polled every half a second
            for report in reports:
                report.update(running=len(engine.running), waiting=len(engine.waiting))
                report.reported_at = 1.0 + step
            if step == 25:
                await fleet.send("heavy", 100, 50)
    assert fleet.waiting_in_engines <= 6
    await fleet.close()
