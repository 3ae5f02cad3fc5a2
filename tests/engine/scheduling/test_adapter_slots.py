"""Adapter slots: who gets them, who waits, and that nobody waits for ever."""

from __future__ import annotations

import pytest

from blade_llm.cache.adapters import AdapterResidency
from blade_llm.cache.manager import KVCacheManager
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.limits import SchedulerConfig
from blade_llm.scheduling.plan import AdapterUpdate, StepPlan, StepResult
from blade_llm.scheduling.request import Request
from blade_llm.scheduling.scheduler import Scheduler


def test_the_least_recently_used_makes_room() -> None:
    slots = AdapterResidency(2)
    assert [slots.take(7), slots.take(8)] == [1, 2]
    assert slots.take_updates() == [(1, 7), (2, 8)]
    assert not slots.has_room(9)
    assert slots.has_room(7)
    assert slots.has_room(0)
    slots.leave(8)
    slots.leave(7)
    assert slots.take(8) == 2, "it is still there"
    assert slots.take(9) == 1
    assert slots.take_updates() == [(1, 9)]
    assert (slots.hits, slots.loads) == (1, 3)
    with pytest.raises(AssertionError, match="in use"):
        slots.forget(9)


def test_two_requests_hold_one_slot() -> None:
    slots = AdapterResidency(1)
    assert slots.take(5) == slots.take(5) == 1
    slots.leave(5)
    assert not slots.has_room(6)
    slots.leave(5)
    assert slots.has_room(6)


def scheduler_of(adapters: int, seqs: int = 4) -> Scheduler:
    config = SchedulerConfig(max_num_seqs=seqs, max_batch_tokens=256, max_model_len=256, max_adapters=adapters)
    return Scheduler(config, KVCacheManager(256))


def request_of(name: str, adapter: int, tokens: int = 4) -> Request:
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, seed=0)
    return Request(name, [5, 6, 7], sampling, adapter=adapter, adapter_digest=bytes([adapter]))


def result_of(plan: StepPlan) -> StepResult:
    count = sum(chunk.sample for chunk in plan.chunks)
    return StepResult(tokens=[[9]] * count, logprobs=[None] * count)


def entered(plan: StepPlan) -> list[str]:
    return [new.request_id for new in plan.new_requests]


def test_requests_of_an_adapter_on_the_device_pass_those_that_wait_for_a_slot() -> None:
    scheduler = scheduler_of(1)
    scheduler.add(request_of("a", 1))
    scheduler.add(request_of("b", 2))
    scheduler.add(request_of("again a", 1))
    scheduler.add(request_of("base", 0))
    plan = scheduler.schedule()
    assert plan is not None
    assert sorted(entered(plan)) == ["a", "again a", "base"]
    assert {new.request_id: new.adapter_slot for new in plan.new_requests} == {"a": 1, "again a": 1, "base": 0}
    assert plan.adapter_updates == [AdapterUpdate(1, 1)]
    for _ in range(4):
        scheduler.update(plan, result_of(plan))
        plan = scheduler.schedule()
        assert plan is not None
    assert entered(plan) == ["b"]
    assert plan.adapter_updates == [AdapterUpdate(1, 2)]


def test_nobody_waits_for_ever() -> None:
    """Requests of one adapter keep coming, so that its slot would never be free."""
    scheduler = scheduler_of(1)
    scheduler.add(request_of("first", 1))
    plan = scheduler.schedule()
    scheduler.add(request_of("other", 2))
    for step in range(200):
        assert plan is not None
        if "other" in entered(plan):
            break
        scheduler.add(request_of(f"more {step}", 1))
        scheduler.update(plan, result_of(plan))
        plan = scheduler.schedule()
    else:
        raise AssertionError("it still waits")
    assert 32 <= step < 60


def test_an_aborted_request_gives_its_slot_back() -> None:
    scheduler = scheduler_of(1)
    scheduler.add(request_of("a", 1, tokens=100))
    plan = scheduler.schedule()
    assert plan is not None
    scheduler.add(request_of("b", 2))
    scheduler.update(plan, result_of(plan))
    scheduler.abort(["a"])
    assert scheduler.adapters.live(1) == 0
    plan = scheduler.schedule()
    assert plan is not None
    assert entered(plan) == ["b"]
