"""What plans carry for speculation, pipelines, adapters and images."""

from typing import Any

import pytest
from engine_support.images import encoding, image_of, pixels_of, with_images
from engine_support.scheduler_driver import EOS, add, chunks, deliver, plan_of, sample_and_return, scheduler_of, step

from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.plan import AdapterUpdate, StepPlan
from blade_llm.scheduling.request import Request


def spans(plan: StepPlan) -> list[tuple[int, int, int]]:
    return [(chunk.start, chunk.count, chunk.num_draft_tokens) for chunk in plan.chunks]


def test_draft_tokens_bring_several_tokens_in_a_step() -> None:
    scheduler = scheduler_of(max_draft_tokens=3)
    add(scheduler, "a", 14)
    plan = sample_and_return(scheduler)
    assert spans(plan) == [(0, 14, 0)]  # nothing to draft from
    plan = plan_of(scheduler)
    assert spans(plan) == [(14, 4, 3)]
    assert plan.block_updates[0].start == 1  # for the draft tokens
    assert deliver(scheduler, plan, [6, 7, 8, 9])[0].token_ids == [6, 7, 8, 9]
    assert spans(plan_of(scheduler)) == [(18, 4, 3)]


def test_a_decode_with_draft_tokens_waits_for_its_result() -> None:
    scheduler = scheduler_of(max_draft_tokens=3)
    add(scheduler, "a", 14)
    step(scheduler)
    plan = plan_of(scheduler)
    assert spans(plan) == [(14, 4, 3)]
    assert scheduler.schedule() is None
    (output,) = deliver(scheduler, plan, [6, 7])
    assert output.token_ids == [6, 7]
    assert spans(plan_of(scheduler)) == [(16, 4, 3)]


def test_draft_tokens_take_no_tokens_from_prefills_and_preempt_nobody() -> None:
    scheduler = scheduler_of(max_draft_tokens=8, budget=20, blocks=5)
    add(scheduler, "a", 14, max_tokens=40)
    step(scheduler)
    add(scheduler, "b", 17, max_tokens=40)
    deliver(scheduler, plan_of(scheduler), [5])  # without prefill, to measure it
    plan = plan_of(scheduler)
    assert spans(plan) == [(15, 4, 3), (0, 16, 0)]  # 20 tokens: 16 of prefill, 1 of a decode, 3 of drafts
    deliver(scheduler, plan, [5])
    for _ in range(10):
        step(scheduler)
    assert scheduler.stats().preemptions_total == 0


def test_draft_tokens_stay_within_max_tokens_and_within_the_step() -> None:
    scheduler = scheduler_of(max_draft_tokens=3, budget=6)
    add(scheduler, "a", 4, max_tokens=4)
    add(scheduler, "b", 2, max_tokens=20)
    step(scheduler)
    plan = plan_of(scheduler)
    assert spans(plan) == [(4, 3, 2), (2, 3, 2)]
    assert [output.finish_reason for output in deliver(scheduler, plan, [5, 5, 5], [5])] == ["length", None]


def test_no_accepted_token_repeats_the_position() -> None:
    scheduler = scheduler_of()
    add(scheduler, "a", 14)
    step(scheduler)
    plan = plan_of(scheduler)
    assert deliver(scheduler, plan, []) == []
    again = plan_of(scheduler)
    assert again.chunks == plan.chunks


def test_a_stop_among_several_tokens_ends_there() -> None:
    scheduler = scheduler_of(max_draft_tokens=4)
    add(scheduler, "a", 14)
    step(scheduler)
    (output,) = deliver(scheduler, plan_of(scheduler), [6, 7, EOS, 8, 9])
    assert (output.token_ids, output.finish_reason, output.stop_token_id) == ([6, 7], "stop", EOS)
    assert scheduler.stats().generation_tokens_total == 4


def test_pipeline_stages_work_on_different_decodes() -> None:
    scheduler = scheduler_of(pipeline_stages=2)
    for name in ("a", "b", "c"):
        add(scheduler, name, 4)
    step(scheduler)
    first, second = plan_of(scheduler), plan_of(scheduler)
    assert (list(chunks(first)), list(chunks(second))) == (["a", "b"], ["c"])
    assert scheduler.schedule() is None  # every token is under way
    deliver(scheduler, first)
    assert list(chunks(plan_of(scheduler))) == ["a", "b"]


def test_pipeline_stages_work_on_one_long_prompt_together() -> None:
    scheduler = scheduler_of(pipeline_stages=3, budget=32)
    add(scheduler, "a", 90)
    assert [spans(plan_of(scheduler)) for _ in range(3)] == [[(0, 32, 0)], [(32, 32, 0)], [(64, 26, 0)]]


def test_adapter_and_images_enter_with_the_slot() -> None:
    scheduler = scheduler_of(max_adapters=3, images=encoding())
    image = image_of("a", 1, 3)
    sampling = SamplingParams(max_tokens=2, temperature=0)
    request = Request("a", with_images([5, 1, 1, 1, 4], [image]), sampling, adapter=7, images=(image,))
    request.pixels = {image.digest: pixels_of(image)}
    scheduler.add(request)
    plan = plan_of(scheduler)
    (new,) = plan.new_requests
    assert (new.adapter_slot, new.images) == (1, (image,))
    assert plan.adapter_updates == [AdapterUpdate(1, 7)]


@pytest.mark.parametrize("other", [{"adapter_digest": b"x"}, {"cache_salt": "x"}])
def test_blocks_of_another_adapter_or_tenant_are_not_shared(other: dict[str, Any]) -> None:
    scheduler = scheduler_of()
    sampling = SamplingParams(max_tokens=1, temperature=0)
    cached = []
    for number, fields in enumerate([{}, other, {}, other]):
        scheduler.add(Request(str(number), list(range(40)), sampling, **fields))
        cached.append(step(scheduler)[0].cached_tokens)
    assert cached == [0, 0, 32, 32]


def test_pipeline_stages_divide_what_is_to_be_computed_of_prompts() -> None:
    """What is in flight counts, so that the parts are equal."""
    scheduler = scheduler_of(pipeline_stages=2, budget=1000)
    add(scheduler, "a", 300)
    assert [spans(plan_of(scheduler)) for _ in range(2)] == [[(0, 150, 0)], [(150, 150, 0)]]
    several = scheduler_of(pipeline_stages=2, budget=1000)
    for name in ("a", "b", "c", "d"):
        add(several, name, 40)
    assert [list(chunks(plan_of(several))) for _ in range(2)] == [["a", "b"], ["c", "d"]]


def test_few_decodes_wait_for_others_while_every_stage_has_a_step() -> None:
    """Else those of requests that came one by one would stay in steps of their own, each of which reads all weights."""
    scheduler = scheduler_of(pipeline_stages=2)
    in_flight = []
    for name in ("a", "b", "c", "d"):
        add(scheduler, name, 4)
        in_flight.append(plan_of(scheduler))
    first, second, third, fourth = in_flight
    deliver(scheduler, first)
    assert scheduler.schedule() is None
    deliver(scheduler, second)
    assert list(chunks(plan_of(scheduler))) == ["a", "b"]
    deliver(scheduler, third)
    assert scheduler.schedule() is None
    deliver(scheduler, fourth)
    assert list(chunks(plan_of(scheduler))) == ["c", "d"]
