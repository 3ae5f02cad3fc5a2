"""Samples: taken when someone asks, shared by who asks at the same time, and never taken for more than they are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from operator_support.apiserver import Clock
from operator_support.mini_cluster import engine_state, service

from blade_operator.external_metrics import samples as module
from blade_operator.external_metrics.catalog import METRICS, NotMeasured
from blade_operator.external_metrics.samples import Samples, measured
from blade_operator.fleet import FleetReport
from blade_operator.model.objects import Key, Object
from blade_operator.model.observed import Observed
from blade_protocol.signals import RouterSignals

QWEN = Key("team", "qwen")
IN_FLIGHT = METRICS["bladellm_in_flight_requests"]
KV = METRICS["bladellm_kv_cache_usage"]


def _pod(name: str, role: str, ready: bool = True, **metadata: Any) -> Object:
    return {
        "metadata": {"name": name, "labels": {"serving.bladellm.io/role": role}, **metadata},
        "status": {"conditions": [{"type": "Ready", "status": str(ready)}]},
    }


def _signals(in_flight: int) -> RouterSignals:
    return RouterSignals(started=1.0, time=2.0, in_flight=in_flight)


class _World:
    """Services, and what their pods say."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.services = {QWEN: Observed(service(), pods=(_pod("r", "router"),))}
        self.report = FleetReport(signals={"r": _signals(3)})
        self.queries: list[list[str]] = []
        self.foreign = False
        self.samples = Samples(self._observe, self._query, lambda observed: self.foreign, self.clock)
        self.silent: asyncio.Event | None = None

    async def _observe(self, key: Key) -> Observed | None:
        return self.services.get(key)

    async def _query(self, pods: Iterable[Object]) -> FleetReport:
        self.queries.append([pod["metadata"]["name"] for pod in pods])
        if self.silent is not None:
            await self.silent.wait()
        return self.report

    async def in_flight(self, key: Key = QWEN) -> float:
        return (await self.samples.value(key, IN_FLIGHT))[1]


async def test_a_sample_is_shared_and_taken_again_when_it_is_old() -> None:
    world = _World()
    world.silent = asyncio.Event()
    asking = [asyncio.create_task(world.in_flight()) for _ in range(5)]
    await asyncio.sleep(0)
    world.silent.set()
    assert await asyncio.gather(*asking) == [3] * 5
    assert world.queries == [["r"]]
    world.report = FleetReport(signals={"r": _signals(4)})
    world.clock.now += module.FRESH_SECONDS - 0.1
    assert await world.in_flight() == 3
    world.clock.now += 0.2
    assert await world.in_flight() == 4
    assert len(world.queries) == 2


async def test_who_goes_away_takes_no_sample_with_him() -> None:
    world = _World()
    world.silent = asyncio.Event()
    first, second = asyncio.create_task(world.in_flight()), asyncio.create_task(world.in_flight())
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.sleep(0)
    world.silent.set()
    assert await second == 3
    assert len(world.queries) == 1


async def test_a_pod_that_does_not_respond_leaves_the_last_value_for_a_while_and_then_none() -> None:
    world = _World()
    at, value = await world.samples.value(QWEN, IN_FLIGHT)
    assert value == 3
    world.report = FleetReport(engines={"e": engine_state({"metadata": {}})})
    world.clock.now += module.USABLE_SECONDS
    assert await world.samples.value(QWEN, IN_FLIGHT) == (at, 3)
    assert (await world.samples.value(QWEN, KV))[1] == 0  # engines did respond
    world.clock.now += module.FRESH_SECONDS
    with pytest.raises(NotMeasured, match="of LLMService team/qwen: no response from router r"):
        await world.in_flight()
    world.report = FleetReport(signals={"r": _signals(9)})
    world.clock.now += module.FRESH_SECONDS
    assert await world.in_flight() == 9


async def test_an_unknown_value_is_not_replaced_by_an_earlier_one_where_all_pods_respond() -> None:
    world = _World()
    world.services[QWEN] = Observed(service(), pods=(_pod("r", "router"), _pod("e", "engine")))
    engines = {"e": engine_state({"metadata": {}})}
    world.report = FleetReport(engines, signals={"r": _signals(3)})
    assert (await world.samples.value(QWEN, KV))[1] == 0
    world.services[QWEN] = Observed(service(), pods=(_pod("r", "router"),))
    world.report = FleetReport(signals={"r": _signals(3)})
    world.clock.now += module.FRESH_SECONDS
    with pytest.raises(NotMeasured, match="no engine with a KV cache is ready"):
        await world.samples.value(QWEN, KV)


async def test_services_that_are_not_there_or_another_installations_have_no_values() -> None:
    world = _World()
    with pytest.raises(NotMeasured, match="LLMService team/other is not there"):
        await world.in_flight(Key("team", "other"))
    assert await world.in_flight() == 3
    world.foreign = True
    world.clock.now += module.FRESH_SECONDS
    with pytest.raises(NotMeasured, match="belongs to another installation"):
        await world.in_flight()
    assert len(world.queries) == 1


async def test_services_that_nobody_asks_about_are_forgotten_and_many_are_asked_in_turn() -> None:
    world = _World()
    names = [Key("team", f"s{number}") for number in range(3 * module.AT_ONCE)]
    world.services |= dict.fromkeys(names, world.services[QWEN])
    world.silent = asyncio.Event()
    asking = [asyncio.create_task(world.in_flight(key)) for key in names]
    await asyncio.sleep(0.01)
    assert len(world.queries) == module.AT_ONCE
    world.silent.set()
    await asyncio.gather(*asking)
    assert len(world.samples._latest) == len(names)
    world.clock.now += module.KEPT_SECONDS + 1
    await world.in_flight()
    assert list(world.samples._latest) == [QWEN]
    assert not world.samples._running


def test_who_should_have_responded() -> None:
    pods = [
        _pod("r1", "router"),
        _pod("r2", "router"),
        _pod("starting", "router", ready=False),
        _pod("leaving", "router", deletionTimestamp="2026-01-01T00:00:00Z"),
        _pod("e1", "engine"),
        _pod("e2", "engine"),
        _pod("member", "engine-member"),
    ]
    state = engine_state({"metadata": {}})
    others = {
        "draining": msgspec.structs.replace(state, draining=True),
        "new": msgspec.structs.replace(state, ready=False),
    }
    engines = {"e1": state, **others}
    found = measured(pods, FleetReport(engines, signals={"r1": _signals(1), "leaving": _signals(2)}))
    assert (found.silent_routers, found.silent_engines) == (("r2",), ("e2",))
    assert [router.in_flight for router in found.routers] == [1, 2]
    assert found.engines == (state,)
