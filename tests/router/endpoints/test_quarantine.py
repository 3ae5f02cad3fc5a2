"""What is remembered of requests that engines were lost with: bounded, for a time, and for all workers."""

import asyncio

import pytest
from router_support.policies import endpoints
from router_support.suspects import Asked, Clock

from blade_router.endpoints.endpoint import Endpoint
from blade_router.endpoints.quarantine import (
    MAX_CASES,
    QUARANTINE_SECONDS,
    RETENTION_SECONDS,
    SUSPECT_SECONDS,
    Quarantine,
    Trial,
)
from blade_router.endpoints.request_digest import HASHED_AT_ONCE, digest, digest_async
from blade_router.endpoints.shared_quarantine import SLOTS, WIDTH, SharedQuarantine
from blade_router.http.errors import Refused
from blade_router.workers.shared_memory import SharedColumns, SharedMemory


async def lose(quarantine: Quarantine, request: Asked, *lost: Endpoint, key: str = "") -> Trial:
    trial = Trial(quarantine, request, key)
    for endpoint in lost:
        await trial.lost(endpoint, progressed=False)
    return trial


async def convict(quarantine: Quarantine, request: Asked, *, key: str = "") -> None:
    first, second = endpoints(2)
    trial = await lose(quarantine, request, first, key=key)
    with pytest.raises(Refused, match="sent to no other one"):
        await trial.lost(second, progressed=False)
    trial.close()


def test_path_body_and_key_make_a_request() -> None:
    different = [(Asked(), ""), (Asked(b"{} "), ""), (Asked(path="/v1/x"), ""), (Asked(), "k"), (Asked(b""), "{}")]
    assert len({digest(request, key) for request, key in different}) == len(different)


async def test_only_the_same_request_of_the_same_key_is_refused() -> None:
    quarantine = Quarantine()
    await convict(quarantine, Asked(), key="a")
    with pytest.raises(Refused, match="time and again"):
        quarantine.enter(Asked(), "a")
    for request, key in ((Asked(), "b"), (Asked(b"[]"), "a"), (Asked(path="/v1/embeddings"), "a")):
        assert quarantine.enter(request, key) is None


async def test_a_large_body_is_hashed_by_a_thread() -> None:
    """And makes the same number, also where two equal ones are lost at once."""
    large, equal = [Asked(b"x" * (HASHED_AT_ONCE + 1)) for _ in range(2)]
    other = Asked(b"x" * HASHED_AT_ONCE + b"y")
    assert [await digest_async(each, "k") for each in (large, other)] == [digest(each, "k") for each in (large, other)]
    quarantine, turns = Quarantine(), 0
    losing = asyncio.gather(*(lose(quarantine, each, endpoints(1)[0]) for each in (large, equal)))
    while not losing.done():
        turns += 1
        await asyncio.sleep(0.001)
    first, second = await losing
    assert turns, "others go on meanwhile"
    assert first.case is second.case is not None
    assert len(quarantine) == 1
    await convict(quarantine, large)
    with pytest.raises(Refused, match="time and again"):
        quarantine.enter(equal, "")
    assert quarantine.enter(other, "") is None


async def test_a_suspect_is_forgotten_after_a_while_and_a_convict_later() -> None:
    clock = Clock()
    quarantine = Quarantine(clock=clock)
    suspect = await lose(quarantine, Asked(b"suspect"), endpoints(1)[0])
    await convict(quarantine, Asked(b"convict"))
    clock.now += SUSPECT_SECONDS
    equal = quarantine.enter(Asked(b"suspect"), "")
    assert equal is not None, "the first one is not over, it waits for an engine"
    equal.close()
    suspect.close()
    assert quarantine.enter(Asked(b"suspect"), "") is None
    clock.now = 1000.0 + QUARANTINE_SECONDS
    trial = quarantine.enter(Asked(b"convict"), "")
    assert trial is not None
    assert trial.strikes == 1
    trial.close()
    clock.now += RETENTION_SECONDS
    assert quarantine.enter(Asked(b"convict"), "") is None
    assert len(quarantine) == 0
    assert not quarantine._sizes


async def test_memory_is_bounded_and_the_oldest_goes_first() -> None:
    quarantine = Quarantine()
    (endpoint,) = endpoints(1)
    for number in range(MAX_CASES + 10):
        await lose(quarantine, Asked(b"%08d" % number), endpoint)
    assert len(quarantine) == MAX_CASES
    assert quarantine.enter(Asked(b"%08d" % 9), "") is None
    assert quarantine.enter(Asked(b"%08d" % 10), "") is not None
    assert quarantine._sizes == {8: MAX_CASES}
    assert len(quarantine._crashes) == 1


async def test_an_equal_request_that_was_served_acquits() -> None:
    quarantine = Quarantine()
    one, two = endpoints(2)
    trial = await lose(quarantine, Asked(), one)
    quarantine.served(Asked(), "")
    await trial.lost(two, progressed=False)  # its first loss, as far as suspicion goes
    assert one.health.failures == 1
    assert two.health.failures == 0
    trial.served()
    assert two.health.failures == 1
    assert len(quarantine) == 0


async def test_a_conviction_reaches_the_other_workers() -> None:
    clock = Clock()
    ours, theirs = Quarantine(clock=clock), Quarantine(clock=clock)
    memory = SharedMemory(None, 0, 2)
    row = SharedColumns(memory, "quarantine", 1, WIDTH).open("convictions")

    class Theirs:
        own = row.cells[1]
        cells = row.cells

        def close(self) -> None:
            pass

    first = SharedQuarantine(ours, row, clock=lambda: int(clock.now * 1e9))
    second = SharedQuarantine(theirs, Theirs(), clock=lambda: int(clock.now * 1e9))
    await convict(ours, Asked(b"one"), key="k")
    first.poll()
    second.poll()
    with pytest.raises(Refused) as refused:
        theirs.enter(Asked(b"one"), "k")
    assert refused.value.retry_after == QUARANTINE_SECONDS
    clock.now += QUARANTINE_SECONDS
    trial = theirs.enter(Asked(b"one"), "k")
    assert trial is not None, "one engine may have it, then"
    for number in range(3 * SLOTS):
        first.publish(number, 1, 60.0)
    second.poll()
    assert len(theirs) == 1 + SLOTS
    second.poll()
    assert len(theirs) == 1 + SLOTS
