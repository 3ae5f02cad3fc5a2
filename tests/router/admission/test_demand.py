"""Who starts engines is told at once that requests wait for one, whichever process of the router holds them."""

import asyncio
from tempfile import TemporaryFile

import pytest

from blade_router.admission.demand import MAX_WAITERS, Demand, TooManyWaiters
from blade_router.admission.request_queues import RequestQueues
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.workers.shared_memory import SharedColumns, SharedMemory


async def test_the_first_held_request_ends_every_wait() -> None:
    demand = Demand()
    waits = [asyncio.create_task(demand.wait(60)) for _ in range(3)]
    await asyncio.sleep(0)
    demand.update(0)
    await asyncio.sleep(0)
    assert not any(wait.done() for wait in waits)
    demand.update(1)
    assert await asyncio.gather(*waits) == [True] * 3
    assert await demand.wait(60), "it is still there"


async def test_without_demand_a_wait_ends_after_its_time() -> None:
    assert not await Demand().wait(0.01)


async def test_demand_that_has_gone_again_ends_a_wait_without_any() -> None:
    demand = Demand()
    wait = asyncio.create_task(demand.wait(60))
    await asyncio.sleep(0)
    demand.update(1)
    demand.update(0)
    assert not await wait


async def test_only_so_many_wait_and_one_that_leaves_makes_room() -> None:
    demand = Demand()
    waits = [asyncio.create_task(demand.wait(60)) for _ in range(MAX_WAITERS)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyWaiters):
        await demand.wait(60)
    waits[0].cancel()
    await asyncio.wait(waits[:1])
    waits.append(asyncio.create_task(demand.wait(60)))
    await asyncio.sleep(0)
    assert not waits[-1].done()
    demand.close()
    assert await asyncio.gather(*waits[1:]) == [False] * MAX_WAITERS
    assert not await demand.wait(60), "a router that stops lets nobody wait"


async def test_what_a_sibling_process_holds_is_demand() -> None:
    with TemporaryFile() as file:
        file.truncate(1 << 20)
        one, other = (
            Demand(SharedColumns(SharedMemory(file.fileno(), number, 2), "held", 1).open("requests"))
            for number in range(2)
        )
        wait = asyncio.create_task(one.wait(60))
        other.update(2)
        assert await wait
        assert one.present
        other.update(0)
        assert not one.present


async def test_a_process_that_died_leaves_no_demand() -> None:
    with TemporaryFile() as file:
        file.truncate(4 << 20)
        queues = [RequestQueues(EndpointSet(), SharedMemory(file.fileno(), number, 2)) for number in range(2)]
        queues[1].demand.update(5)
        assert queues[0].demand.present
        RequestQueues(EndpointSet(), SharedMemory(file.fileno(), 1, 2))
        assert not queues[0].demand.present
