"""Single decisions of the scheduler: order, budget, admission, preemption, ends, refusals."""

from typing import Any

import pytest
from engine_support.scheduler_driver import EOS, add, chunks, deliver, plan_of, sample_and_return, scheduler_of, step

from blade_llm.sampling.parameters import SamplingParams, TokenLogprobs
from blade_llm.scheduling.budget.prefill import PrefillBudget
from blade_llm.scheduling.limits import SchedulerConfig
from blade_llm.scheduling.plan import StepResult
from blade_llm.scheduling.request import Request, RequestRefusedError
from blade_llm.scheduling.scheduler import Scheduler


def test_decodes_first_then_prefills_then_arrivals() -> None:
    scheduler = scheduler_of(budget=50)
    scheduler.budget = PrefillBudget(first_chunk=100)
    add(scheduler, "a", 30)
    step(scheduler)
    add(scheduler, "b", 120)
    assert chunks(sample_and_return(scheduler)) == {"a": 1}  # a measurement: decode alone
    assert chunks(sample_and_return(scheduler)) == {"a": 1, "b": 49}
    add(scheduler, "c", 80)
    assert chunks(sample_and_return(scheduler)) == {"a": 1, "b": 49}
    plan = sample_and_return(scheduler)
    assert chunks(plan) == {"a": 1, "b": 22, "c": 27}
    assert [chunk.sample for chunk in plan.chunks] == [True, True, False]
    assert [chunk.slot for chunk in plan.new_requests] == [plan.chunks[2].slot]


def test_priority_before_arrival() -> None:
    scheduler = scheduler_of(slots=1)
    add(scheduler, "later", 4)
    add(scheduler, "urgent", 4, priority=-1)
    assert list(chunks(plan_of(scheduler))) == ["urgent"]


def test_blocks_travel_as_differences() -> None:
    scheduler = scheduler_of()
    add(scheduler, "a", 30)
    plan = sample_and_return(scheduler)
    (update,) = plan.block_updates
    assert (update.start, len(update.blocks)) == (0, 2)
    updates = [sample_and_return(scheduler).block_updates for _ in range(20)]
    grown = [(i, update.start, len(update.blocks)) for i, each in enumerate(updates) for update in each]
    assert grown == [(2, 2, 1), (18, 3, 1)]  # positions 32 and 48


def test_a_slot_is_kept_and_freed_by_the_next_plan() -> None:
    scheduler = scheduler_of(slots=2)
    add(scheduler, "a", 4, max_tokens=3)
    add(scheduler, "b", 4, max_tokens=5)
    slots = [{chunk.request_id: chunk.slot for chunk in sample_and_return(scheduler).chunks} for _ in range(3)]
    assert slots[0] == slots[1] == slots[2]
    plan = plan_of(scheduler)
    assert plan.freed_slots == [slots[0]["a"]]
    deliver(scheduler, plan)
    assert plan_of(scheduler).freed_slots == []


def test_ends() -> None:
    scheduler = scheduler_of(max_model_len=20)
    add(scheduler, "eos", 4)
    add(scheduler, "ignored", 4, ignore_eos=True)
    add(scheduler, "stop", 4, stop_token_ids=(7,))
    add(scheduler, "longest", 4, max_tokens=1)
    add(scheduler, "model", 19)
    outputs = {
        output.request_id: output for output in deliver(scheduler, plan_of(scheduler), [EOS], [EOS], [7], [9], [9])
    }
    ends = {name: (output.token_ids, output.finish_reason, output.stop_token_id) for name, output in outputs.items()}
    assert ends == {
        "eos": ([], "stop", EOS),
        "ignored": ([EOS], None, None),
        "stop": ([], "stop", 7),
        "longest": ([9], "length", None),
        "model": ([9], "length", None),
    }
    assert scheduler.stats().generation_tokens_total == 5


def test_logprobs_belong_to_the_tokens_that_are_kept() -> None:
    scheduler = scheduler_of()
    add(scheduler, "a", 4, logprobs=0)
    logprobs = [TokenLogprobs(-0.25), TokenLogprobs(-0.5)]
    plan = plan_of(scheduler)
    (output,) = scheduler.update(plan, StepResult([[9, EOS]], [logprobs]))
    assert (output.token_ids, output.logprobs) == ([9], logprobs[:1])
    assert output.stop_logprobs == logprobs[1]


def test_min_tokens_masks_what_would_end_it() -> None:
    scheduler = scheduler_of()
    add(scheduler, "a", 4, min_tokens=2, stop_token_ids=(9,))
    add(scheduler, "b", 4, min_tokens=2, ignore_eos=True)
    add(scheduler, "c", 4)
    assert [new.masked_until_min_tokens for new in plan_of(scheduler).new_requests] == [(EOS, 9), (), ()]


def test_a_missing_seed_is_chosen_once() -> None:
    request = Request("a", [1], SamplingParams())
    assert request.sampling.seed is not None


def test_never_more_samples_than_max_tokens() -> None:
    scheduler = scheduler_of()
    add(scheduler, "a", 4, max_tokens=2)
    first, second = plan_of(scheduler), plan_of(scheduler)  # the second before the first is delivered
    assert scheduler.schedule() is None
    deliver(scheduler, first)
    (output,) = deliver(scheduler, second)
    assert output.finish_reason == "length"
    assert not scheduler.has_work


def test_a_stop_found_late_discards_the_token_already_launched() -> None:
    scheduler = scheduler_of(slots=1)
    add(scheduler, "a", 4)
    first, second = plan_of(scheduler), plan_of(scheduler)
    assert deliver(scheduler, first, [EOS])[0].finish_reason == "stop"
    add(scheduler, "a", 4)  # the id, the slot and the blocks again
    third = plan_of(scheduler)
    assert deliver(scheduler, second, [6]) == []
    assert deliver(scheduler, third, [7])[0].token_ids == [7]


def test_the_last_to_come_is_preempted_and_first_to_return() -> None:
    scheduler = scheduler_of(blocks=6, max_model_len=90, prefix_cache=False)
    add(scheduler, "first", 16)
    add(scheduler, "second", 16)
    step(scheduler)
    add(scheduler, "third", 40)  # waits: no room
    for _ in range(64):
        plan = plan_of(scheduler)
        if "second" not in chunks(plan):
            break
        deliver(scheduler, plan)
    assert scheduler.stats().preemptions_total == 1
    assert list(chunks(plan)) == ["first"]
    deliver(scheduler, plan)
    scheduler.abort(["first"])
    plan = plan_of(scheduler)
    assert next(iter(chunks(plan))) == "second"
    (back,) = [new for new in plan.new_requests if new.request_id == "second"]
    assert back.num_prompt_tokens == 16
    assert back.token_ids[16:] == [5] * 33  # nothing that was generated is lost


def two_that_fill_the_cache() -> Scheduler:
    """After one step. The next needs no block; the one after that finds a block for the first request only."""
    scheduler = scheduler_of(blocks=5, max_model_len=80, prefix_cache=False)
    add(scheduler, "first", 31, max_tokens=10)
    add(scheduler, "second", 31, max_tokens=10)
    step(scheduler)
    return scheduler


def test_a_token_in_flight_of_a_preempted_request_counts() -> None:
    scheduler = two_that_fill_the_cache()
    launched, after = plan_of(scheduler), plan_of(scheduler)
    assert list(chunks(launched)) == ["first", "second"]
    assert list(chunks(after)) == ["first"]
    assert scheduler.stats().waiting == 1
    outputs = deliver(scheduler, launched, [6], [7])
    assert [output.token_ids for output in outputs] == [[6], [7]]


def test_a_preempted_request_waits_for_its_token_in_flight() -> None:
    scheduler = two_that_fill_the_cache()
    launched, after = plan_of(scheduler), plan_of(scheduler)
    scheduler.abort(["first"])
    assert scheduler.schedule() is None  # room enough, but one token is not known yet
    deliver(scheduler, launched, [6], [7])
    (new,) = plan_of(scheduler).new_requests
    assert new.token_ids[31:] == [5, 7]
    assert deliver(scheduler, after, [8]) == []


def test_a_preempted_request_may_end_while_it_waits() -> None:
    scheduler = two_that_fill_the_cache()
    launched, _ = plan_of(scheduler), plan_of(scheduler)
    outputs = deliver(scheduler, launched, [6], [EOS])
    assert outputs[1].finish_reason == "stop"
    assert scheduler.stats().waiting == 0


def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    scheduler = scheduler_of(blocks=8, max_model_len=128)
    add(scheduler, "first", 16, max_tokens=60)
    add(scheduler, "second", 40, max_tokens=60)
    while scheduler.stats().preemptions_total == 0:
        plan = sample_and_return(scheduler)
    scheduler.abort(["first"])
    plan = plan_of(scheduler)
    assert plan.chunks[0].start >= 32
    assert plan.chunks[0].count <= 32


def test_abort_frees_at_once_whatever_the_request_is_doing() -> None:
    scheduler = scheduler_of(slots=2)
    for name in ("running", "in flight", "waiting"):
        add(scheduler, name, 20)
    plan = plan_of(scheduler)
    scheduler.abort(["running", "waiting", "unknown", "running"])
    assert (scheduler.stats().running, scheduler.stats().waiting) == (1, 0)
    scheduler.abort(["in flight"])
    assert scheduler.stats().kv_blocks_free == 64
    assert deliver(scheduler, plan) == []
    assert not scheduler.has_work


def test_generated_blocks_are_cached_too() -> None:
    scheduler = scheduler_of()
    add(scheduler, "a", 16, max_tokens=40)
    outputs = []
    while scheduler.has_work:
        outputs += step(scheduler)
    prompt = [10 + ord("a") + i for i in range(16)]
    generated = [token for output in outputs for token in output.token_ids]
    scheduler.add(Request("next turn", [*prompt, *generated, 1, 2, 3], SamplingParams(max_tokens=1)))
    assert step(scheduler)[0].cached_tokens == 48  # of 16 + 40 + 3


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "advice"),
    [
        (0, 5, "send at least one"),
        (100, 5, "shorten the prompt to at most 99 tokens"),
        (20, 50, "lower max_tokens to at most 45, or give the engine a larger KV cache"),
        (70, 5, "shorten the prompt, or give the engine a larger KV cache"),
    ],
)
def test_what_can_never_run_is_refused_with_advice(prompt: int, max_tokens: int, advice: str) -> None:
    scheduler = scheduler_of(blocks=4, max_model_len=100)
    with pytest.raises(RequestRefusedError, match=advice):
        add(scheduler, "a", prompt, max_tokens)
    assert scheduler.stats().waiting == 0
    add(scheduler, "fits", 20, max_tokens=45)
    while scheduler.has_work:
        step(scheduler)
    assert scheduler.stats().preemptions_total == 0


def test_an_id_in_use_is_refused() -> None:
    scheduler = scheduler_of()
    add(scheduler, "a", 4)
    with pytest.raises(RequestRefusedError, match="in use"):
        add(scheduler, "a", 4)


@pytest.mark.parametrize("name", ["max_num_seqs", "max_batch_tokens", "max_model_len", "pipeline_stages"])
def test_limits_must_be_positive(name: str) -> None:
    limits: dict[str, Any] = {"max_num_seqs": 1, "max_batch_tokens": 1, "max_model_len": 1, name: 0}
    with pytest.raises(ValueError, match=f"{name} must be at least 1"):
        SchedulerConfig(**limits)


@pytest.mark.parametrize(
    ("wants", "outputs"),
    [
        ({"pooling": "mean"}, {}),
        ({"pooling": "last"}, {"embeddings": {0: b""}}),
        ({"sampling": SamplingParams(prompt_logprobs=0)}, {"prompt_logprobs": {0: []}}),
        ({}, None),
    ],
)
def test_steps_with_prompt_outputs_are_charged_to_what_is_launched(
    wants: dict[str, Any], outputs: dict[str, Any] | None
) -> None:
    scheduler = scheduler_of(budget=16)
    scheduler.budget = PrefillBudget(graph_sizes=(32,))
    scheduler.add(
        Request("p", list(range(3, 33 if "mean" in wants.values() else 18)), **{"sampling": SamplingParams()} | wants)
    )
    plan = plan_of(scheduler)
    tokens = [[5] for chunk in plan.chunks if chunk.sample]
    scheduler.update(plan, StepResult(tokens, [None] * len(tokens), **outputs or {}), 0.5)
    launched, replayed = scheduler.budget.cost.per_token, scheduler.budget.graph_cost.per_token
    assert (launched is None, replayed is None) == (outputs is None, outputs is not None)
