"""Admission control: who may overtake whom, what the shortest prompts get, and who waits for whose prefix. In steps."""

from __future__ import annotations

import sys
from types import FrameType

import pytest
from engine_support.scheduler_driver import add, chunks, deliver, plan_of, sample_and_return, scheduler_of, step

from blade_llm.cache.manager import KVCacheManager
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.admission import FIRST_COME_FIRST_SERVED, AdmissionPolicy, divide
from blade_llm.scheduling.limits import SchedulerConfig
from blade_llm.scheduling.request import Request
from blade_llm.scheduling.scheduler import Scheduler

SHARED = [31 * i % 1009 for i in range(8000)]


def large_scheduler(blocks: int = 4000, slots: int = 64, policy: AdmissionPolicy | None = None) -> Scheduler:
    config = SchedulerConfig(max_num_seqs=slots, max_batch_tokens=2048, max_model_len=16_000)
    return Scheduler(config, KVCacheManager(blocks), policy=policy)


def steps_until_prefilled(scheduler: Scheduler, *names: str, most: int = 5000) -> int:
    """Steps until each of ``names`` has sampled its first token."""
    left, steps = set(names), 0
    while left:
        plan = plan_of(scheduler)
        deliver(scheduler, plan)
        left -= {chunk.request_id for chunk in plan.chunks if chunk.sample}
        steps += 1
        assert steps < most, f"{sorted(left)} are starved"
    return steps


def add_beams(scheduler: Scheduler, name: str, width: int, prompt: int = 4, max_tokens: int = 100) -> None:
    scheduler.add(Request(name, [7] * prompt, SamplingParams(max_tokens=max_tokens, beam_width=width)))


def test_requests_that_fit_overtake_one_that_waits_for_all_slots() -> None:
    scheduler = large_scheduler()
    add(scheduler, "stream", 4, max_tokens=3000)
    step(scheduler)
    add_beams(scheduler, "wide", 64)
    shorts = [f"short {i}" for i in range(20)]
    for name in shorts:
        add(scheduler, name, 8, max_tokens=5)
    assert steps_until_prefilled(scheduler, *shorts, most=20) <= 12  # 16 prefill tokens a step, none in the first


def test_a_request_for_which_blocks_lack_is_overtaken() -> None:
    scheduler = scheduler_of(blocks=20, max_model_len=320)
    add(scheduler, "running", 160, max_tokens=40)
    step(scheduler)
    add(scheduler, "large", 200, max_tokens=10)
    add(scheduler, "small", 4, max_tokens=10)
    assert list(chunks(sample_and_return(scheduler))) == ["running"]
    assert list(chunks(sample_and_return(scheduler))) == ["running", "small"]
    scheduler.abort(["running"])
    assert "large" in chunks(plan_of(scheduler))


def test_one_that_was_overtaken_often_is_not_any_more() -> None:
    scheduler = large_scheduler(slots=4, policy=AdmissionPolicy(most_overtakes=5))
    add(scheduler, "stream", 4, max_tokens=30)
    step(scheduler)
    add_beams(scheduler, "wide", 4, max_tokens=2)
    admitted = []
    for number in range(60):
        add(scheduler, f"short {number}", 4, max_tokens=2)
        plan = plan_of(scheduler)
        admitted += [new.request_id for new in plan.new_requests]
        if "wide" in admitted:
            break
        deliver(scheduler, plan)
    assert admitted[:6] == [*(f"short {number}" for number in range(5)), "wide"]


def test_short_prompts_that_overtake_many_long_ones_age_nobody() -> None:
    """Who waits for tokens gets half of them in turn. Were it to age, after 32 short prompts all others would wait for
    all of the long ones."""
    scheduler = large_scheduler(slots=256)
    for number in range(100):
        add(scheduler, f"long {number}", 6000, max_tokens=1)
    for number in range(40):
        add(scheduler, f"short {number}", 8, max_tokens=1)
        assert steps_until_prefilled(scheduler, f"short {number}") <= 3
    assert "long 20" not in {request.request_id for request in scheduler._sets.waiting}  # and these get on


@pytest.mark.parametrize("many", [50, 1900])
def test_a_short_prompt_is_found_however_many_wait_before_it(many: int) -> None:
    scheduler = large_scheduler(slots=256)
    for number in range(many):
        add(scheduler, f"long {number}", 6000, max_tokens=1)
    step(scheduler)
    add(scheduler, "short", 8, max_tokens=1)
    assert steps_until_prefilled(scheduler, "short") <= 3


def test_the_shortest_of_a_lower_priority_overtakes_nobody() -> None:
    config = SchedulerConfig(max_num_seqs=256, max_batch_tokens=2048, max_model_len=16_000)
    scheduler = Scheduler(config, KVCacheManager(4000, enable_prefix_cache=False))
    for number in range(200):
        add(scheduler, f"long {number}", 2100, max_tokens=1)
    add(scheduler, "later", 8, max_tokens=1, priority=1)
    assert steps_until_prefilled(scheduler, "later") > 200


def test_a_lower_priority_does_not_overtake_a_higher_one() -> None:
    scheduler = scheduler_of(blocks=20, max_model_len=320)
    add(scheduler, "running", 160, max_tokens=40)
    step(scheduler)
    add(scheduler, "large", 200, max_tokens=10, priority=1)
    add(scheduler, "later", 4, max_tokens=10, priority=2)
    for _ in range(5):
        assert list(chunks(sample_and_return(scheduler))) == ["running"]
    add(scheduler, "urgent", 4, max_tokens=10, priority=0)
    assert list(chunks(sample_and_return(scheduler))) == ["running", "urgent"]


def test_a_preempted_request_is_not_overtaken() -> None:
    scheduler = scheduler_of(blocks=6, max_model_len=90, prefix_cache=False)
    add(scheduler, "first", 16)
    add(scheduler, "second", 16)
    while scheduler.stats().preemptions_total == 0:
        step(scheduler)
    add(scheduler, "small", 1, max_tokens=2)
    for _ in range(3):
        assert list(chunks(sample_and_return(scheduler))) == ["first"]


@pytest.mark.parametrize("streams", [0, 1, 30])
def test_a_short_prompt_behind_a_long_one_starts_within_three_steps(streams: int) -> None:
    scheduler = large_scheduler()
    for number in range(streams):
        add(scheduler, f"stream {number}", 4, max_tokens=3000)
    if streams:
        steps_until_prefilled(scheduler, *(f"stream {number}" for number in range(streams)))
    add(scheduler, "long", 6000)
    if streams:
        step(scheduler)
        step(scheduler)
    add(scheduler, "short", 8)
    assert steps_until_prefilled(scheduler, "short") <= 3


def test_the_first_in_order_gets_half_of_the_tokens_however_many_are_shorter() -> None:
    scheduler = large_scheduler(slots=60)
    add(scheduler, "long", 10_000)
    for number in range(300):
        add(scheduler, f"short {number}", 500, max_tokens=1)
    for _ in range(9):
        assert chunks(sample_and_return(scheduler))["long"] >= 1024


def test_tokens_are_divided_among_the_shortest_and_the_first() -> None:
    assert divide([5, 9], 20, 10) == [5, 9]
    assert divide([6000, 8], 2048, 1024) == [2040, 8]
    assert divide([6000, 3000], 2048, 1024) == [1024, 1024]
    assert divide([6000, 3000, 100, 7000], 2048, 1024) == [1024, 924, 100, 0]
    assert divide([10, 6000], 2048, 1024) == [10, 2038]
    assert divide([40, 50], 1, 0) == [1, 0]


def add_shared(scheduler: Scheduler, count: int, priority: int = 0) -> list[str]:
    names = [f"shared {i}" for i in range(count)]
    for index, name in enumerate(names):
        tokens = [*SHARED, 2000 + index, 3000 + index]
        scheduler.add(Request(name, tokens, SamplingParams(max_tokens=70, temperature=0.0), priority=priority))
    return names


def test_requests_wait_for_a_prefix_where_not_all_of_them_fit_without_it() -> None:
    """Room for 9,600 tokens; each has 8,000, the same ones. First come, first served, all wait for the first's end."""
    scheduler = large_scheduler(blocks=600)
    names = add_shared(scheduler, 8)
    assert steps_until_prefilled(scheduler, *names) <= 8
    fcfs = large_scheduler(blocks=600, policy=FIRST_COME_FIRST_SERVED)
    names = add_shared(fcfs, 8)
    assert steps_until_prefilled(fcfs, *names) > 70


def test_a_prefix_is_computed_once_also_where_all_fit() -> None:
    scheduler = large_scheduler()
    names = add_shared(scheduler, 8)
    computed, left = 0, set(names)
    while left:
        plan = sample_and_return(scheduler)
        computed += sum(chunk.count for chunk in plan.chunks)
        left -= {chunk.request_id for chunk in plan.chunks if chunk.sample}
    assert computed < len(SHARED) + 8 * 70


def test_who_waits_for_a_prefix_goes_on_when_nobody_computes_it_any_more() -> None:
    scheduler = large_scheduler()
    names = add_shared(scheduler, 3)
    assert list(chunks(sample_and_return(scheduler))) == names[:1]
    scheduler.abort(names[:1])
    assert list(chunks(sample_and_return(scheduler))) == names[1:2]
    scheduler.abort(names[1:2])
    assert steps_until_prefilled(scheduler, names[2]) <= 5


def test_the_urgent_wait_for_nobodys_prefix() -> None:
    scheduler = large_scheduler()
    add_shared(scheduler, 1, priority=5)
    step(scheduler)
    scheduler.add(Request("urgent", [*SHARED, 1], SamplingParams(max_tokens=5)))
    assert "urgent" in chunks(sample_and_return(scheduler))


def test_nobody_waits_for_the_prefix_of_one_that_gets_no_tokens() -> None:
    """``second`` is neither the first in order nor the shortest, and has the prefix that ``short`` begins with."""
    scheduler = large_scheduler(slots=8)
    add(scheduler, "stream", 4, max_tokens=3000)
    step(scheduler)
    add(scheduler, "first", 9000)
    scheduler.add(Request("second", SHARED[:6000], SamplingParams(max_tokens=5)))
    step(scheduler)
    assert {"first", "second"} == set(chunks(sample_and_return(scheduler))) - {"stream"}
    add(scheduler, "third", 5000)
    step(scheduler)
    scheduler.add(Request("short", SHARED[:500], SamplingParams(max_tokens=5)))
    step(scheduler)
    assert "short" in chunks(sample_and_return(scheduler))


@pytest.mark.parametrize("prompt", [8, 400])
def test_a_step_costs_the_same_however_many_wait(prompt: int) -> None:
    """Calls of functions in one ``schedule`` in which nobody is admitted for want of blocks."""

    def calls(waiting: int) -> int:
        scheduler = large_scheduler(blocks=620)
        add(scheduler, "running", 9600, max_tokens=100)
        while not any(chunk.sample for chunk in sample_and_return(scheduler).chunks):
            pass
        for number in range(waiting):
            add(scheduler, f"waiting {number}", prompt if number % 2 else 400)
        for _ in range(40):
            step(scheduler)
        counted = 0

        def count(frame: FrameType, event: str, argument: object) -> None:
            nonlocal counted
            counted += event in ("call", "c_call")

        sys.setprofile(count)
        scheduler.schedule()
        sys.setprofile(None)
        return counted

    assert calls(2000) <= calls(200)
