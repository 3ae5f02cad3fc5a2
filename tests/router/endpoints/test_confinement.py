"""Keys whose requests kill engines: when they are confined, to what, and for how long."""

import asyncio
import os

import pytest
from router_support.policies import endpoints
from router_support.suspects import Asked, Clock

from blade_router.endpoints.confinement import (
    CONFINED_SECONDS,
    FIRST_SECONDS,
    MAX_CONFINED_SECONDS,
    MAX_KEYS,
    PROBATION_SECONDS,
    SAME_CRASH_SECONDS,
    Confinement,
)
from blade_router.endpoints.quarantine import Quarantine, Trial
from blade_router.endpoints.shared_quarantine import WIDTH, SharedQuarantine
from blade_router.http.errors import Refused
from blade_router.workers.shared_memory import SharedColumns, SharedMemory


def confined(clock: Clock, *lost: int, engines: int = 8) -> Confinement:
    """A key ``a`` was convicted when these engines were lost, one after the other."""
    confinement = Confinement(clock)
    service = endpoints(engines)
    for place in lost:
        clock.now += SAME_CRASH_SECONDS
        confinement.convicted("a", service[place])
    return confinement


def test_the_second_conviction_confines_a_key_to_a_quarter() -> None:
    service = endpoints(8)
    clock = Clock()
    confinement = confined(clock, 3)
    assert confinement.is_confined("a"), "for seconds: more may be on their way"
    clock.now += FIRST_SECONDS
    assert confinement.on_probation("a")
    assert not confinement.is_confined("a")
    assert confinement.allowed(service, service, "a") == service
    confinement = confined(Clock(), 3, 5)
    part = confinement.allowed(service, service, "a")
    assert {endpoint.name for endpoint in part} == {"3", "5"}, "those that were lost"
    assert confinement.allowed(service, service, "b") == [each for each in service if each not in part]
    assert len(confinement.confined_keys()) == 1


def test_all_confined_keys_share_one_part() -> None:
    service = endpoints(8)
    confinement = confined(Clock(), 3, 5)
    confinement.convicted("b", service[0])
    confinement.convicted("b", service[1])
    assert confinement.allowed(service, service, "b") == confinement.allowed(service, service, "a")
    assert len(confinement.allowed(service, service, "c")) == 6


def test_a_confined_key_gets_nothing_else_and_others_get_it_when_there_is_nothing_else() -> None:
    service = endpoints(4)
    confinement = confined(Clock(), 2, 2, engines=4)
    lost, rest = [service[2]], [service[0], service[1], service[3]]
    assert confinement.allowed(rest, service, "a") == []
    assert confinement.allowed(lost, service, "b") == lost


def test_without_a_key_and_with_one_engine_nobody_is_confined() -> None:
    confinement = Confinement(Clock())
    service = endpoints(4)
    for endpoint in service:
        confinement.convicted("", endpoint)
    assert not confinement.needed
    assert not confinement.on_probation("")
    confinement = confined(Clock(), 0, 0, engines=1)
    alone = endpoints(1)
    assert confinement.allowed(alone, alone, "a") == alone


def test_a_service_that_lost_no_engine_to_it_is_left_alone() -> None:
    confinement = confined(Clock(), 6, 7)
    other = endpoints(4)
    assert confinement.allowed(other, other, "a") == other
    assert confinement.allowed(other, other, "b") == other


def test_each_confinement_takes_twice_as_long_until_the_key_behaves() -> None:
    clock = Clock()
    confinement = confined(clock, 0)
    (engine,) = endpoints(1)
    seconds = CONFINED_SECONDS
    clock.now += SAME_CRASH_SECONDS
    while seconds < 4 * MAX_CONFINED_SECONDS:
        confinement.convicted("a", engine)
        clock.now += min(seconds, MAX_CONFINED_SECONDS) - 1
        assert confinement.is_confined("a")
        clock.now += 1
        assert not confinement.is_confined("a")
        assert not confinement.active
        assert confinement.on_probation("a")
        seconds *= 2
    clock.now += PROBATION_SECONDS
    assert not confinement.on_probation("a")
    confinement.convicted("a", engine)
    clock.now += FIRST_SECONDS
    assert not confinement.is_confined("a"), "it begins anew"


def test_the_number_of_keys_is_bounded() -> None:
    clock = Clock()
    confinement = Confinement(clock)
    (engine,) = endpoints(1)
    for number in range(MAX_KEYS + 10):
        clock.now += 0.1
        confinement.convicted(f"key {number}", engine)
    assert len(confinement._records) == MAX_KEYS
    assert not confinement.on_probation("key 9")
    assert confinement.on_probation("key 10")


def test_nobody_joins_a_suspect_who_need_not() -> None:
    confinement = Confinement(Clock())
    first, second = service = endpoints(2)
    confinement.try_on(first, "")
    assert confinement.needed
    assert confinement.allowed(service, service, "") == [second]
    assert confinement.allowed([first], service, "") == [first]
    confinement.tried(first, "")
    assert not confinement.needed


async def lose(quarantine: Quarantine, key: str, number: int, *places: int) -> None:
    service = endpoints(8)
    trial = Trial(quarantine, Asked(b"%d" % number), key)
    *before, last = places
    for place in before:
        trial.sent_to(service[place])
        await trial.lost(service[place], progressed=False)
    with pytest.raises(Refused, match="sent to no other one"):
        await trial.lost(service[last], progressed=False)
    trial.close()


async def test_a_key_on_probation_has_one_try() -> None:
    quarantine = Quarantine()
    await lose(quarantine, "a", 1, 0, 1)
    await lose(quarantine, "a", 2, 2)
    assert quarantine.confinement.is_confined("a")
    await lose(quarantine, "b", 3, 4, 5)
    assert not quarantine.confinement.needed or quarantine.confinement._suspects == 0
    assert quarantine.confinement.on_probation("b")


async def test_a_crash_whose_culprit_may_be_of_any_key_convicts_no_key() -> None:
    quarantine = Quarantine()
    first, second = endpoints(2)
    trials = [Trial(quarantine, Asked(b"%d" % number), key) for number, key in enumerate("ab")]
    for trial in trials:
        await trial.lost(first, progressed=False)
    lost = [trial.lost(second, progressed=False) for trial in trials]
    assert [type(error) for error in await asyncio.gather(*lost, return_exceptions=True)] == [Refused, Refused]
    assert not quarantine.confinement.on_probation("a")
    assert not quarantine.confinement.on_probation("b")


def test_workers_tell_each_other() -> None:
    file = os.memfd_create("test")
    os.ftruncate(file, 4 << 20)
    memory = [SharedMemory(file, worker, 2) for worker in range(2)]
    service = endpoints(8)
    sides = []
    for each in memory:
        quarantine = Quarantine()
        sides.append((quarantine, SharedQuarantine(quarantine, SharedColumns(each, "q", 1, WIDTH).open("convictions"))))
    (first, _), (second, follower) = sides
    first.confinement.convicted("a", service[3])
    first.confinement.convicted("a", service[5])
    follower.poll()
    follower.poll()
    assert second.confinement.is_confined("a")
    assert second.confinement.allowed(service, service, "a") == first.confinement.allowed(service, service, "a")
    os.close(file)


def test_several_requests_that_are_lost_in_one_crash_are_one_conviction() -> None:
    clock = Clock()
    service = endpoints(8)
    confinement = Confinement(clock)
    for _ in range(3):
        confinement.convicted("a", service[1])
        clock.now += 0.1
    clock.now += FIRST_SECONDS
    assert confinement.on_probation("a")
    assert not confinement.is_confined("a")
    confinement.convicted("a", service[1])
    clock.now += FIRST_SECONDS
    assert confinement.is_confined("a")


async def test_the_only_engine_of_a_service_convicts_no_key() -> None:
    quarantine = Quarantine()
    (engine,) = endpoints(1)
    trial = Trial(quarantine, Asked(), "a")
    await trial.lost(engine, progressed=False)
    with pytest.raises(Refused, match="sent to no other one"):
        await trial.lost(engine, progressed=False)
    assert not quarantine.confinement.on_probation("a")


async def test_who_is_acquitted_is_no_suspect_where_it_is_served() -> None:
    quarantine = Quarantine()
    first, second = endpoints(2)
    trial = Trial(quarantine, Asked(), "a")
    await trial.lost(first, progressed=False)
    trial.sent_to(second)
    assert second.suspects == 1
    trial.served()
    assert second.suspects == 0
    assert not quarantine.confinement.needed


def test_requests_of_a_suspects_key_go_where_it_is_tried() -> None:
    service = endpoints(4)
    confinement = Confinement(Clock())
    confinement.try_on(service[2], "a")
    assert confinement.allowed(service, service, "a") == [service[2]]
    assert service[2] not in confinement.allowed(service, service, "b")
    confinement.tried(service[2], "a")
    assert confinement.allowed(service, service, "a") == service


def test_suspects_do_not_drive_everybody_to_one_engine() -> None:
    service = endpoints(4)
    confinement = Confinement(Clock())
    for endpoint in service[1:]:
        confinement.try_on(endpoint, "")
    assert confinement.allowed(service, service, "") == service
    confinement.tried(service[1], "")
    assert confinement.allowed(service, service, "") == service[:2]
    service[0].room, service[0].in_flight = 8, 8
    assert confinement.allowed(service, service, "") == service, "it is full"
