"""When images are encoded: in order, once, in pieces, and only while somebody needs them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from engine_support.fake_core import core_of, run
from engine_support.fake_runner import FakeRunner, tokens_alone
from engine_support.images import IMAGE_TOKEN, SPEC, encoding, image_of, pixels_of, with_images
from engine_support.scheduler_driver import add, deliver, plan_of, scheduler_of

from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import GenerateRequest
from blade_llm.models.vision.axis_positions import axis_positions
from blade_llm.models.vision.patches import PatchedImage
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.budget.prefill import PrefillBudget
from blade_llm.scheduling.images.encoding import ImageEncoding
from blade_llm.scheduling.images.limits import EncoderLimits, check_images
from blade_llm.scheduling.plan import StepPlan, StepResult
from blade_llm.scheduling.request import Request, RequestRefusedError
from blade_llm.scheduling.scheduler import Scheduler
from blade_llm.spec.vision.images import ImagePixels, ImageSpan

TEXT = [10 + position % 7 for position in range(200)]


def request_of(
    name: str, length: int, images: Sequence[ImageSpan], *, max_tokens: int = 4, priority: int = 0, **fields: Any
) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    prompt = with_images(TEXT[:length], images)
    pixels = {image.digest: pixels_of(image) for image in images}
    return Request(name, prompt, sampling, priority=priority, images=tuple(images), pixels=pixels, **fields)


def chunks_of(plan: StepPlan) -> dict[str, tuple[int, int]]:
    return {chunk.request_id: (chunk.start, chunk.count) for chunk in plan.chunks}


def next_plan(scheduler: Scheduler) -> StepPlan:
    plan = plan_of(scheduler)
    deliver(scheduler, plan)
    return plan


def encoder_of(plan: StepPlan) -> list[tuple[bytes, ...]]:
    return [chunk.digests for chunk in plan.encoder]


def test_text_is_computed_up_to_an_image_that_is_not_encoded() -> None:
    scheduler = scheduler_of(images=encoding())
    image = image_of("a", 20, 30)
    scheduler.add(request_of("r", 60, [image]))
    first = next_plan(scheduler)
    assert chunks_of(first) == {"r": (0, 20)}
    assert not first.encoder
    second = next_plan(scheduler)
    assert not second.chunks
    assert second.new_images == [pixels_of(image)]
    assert sum(chunk.row_layers for chunk in second.encoder) == SPEC.work(image.grid)
    assert chunks_of(next_plan(scheduler)) == {"r": (20, 40)}


def test_images_are_encoded_in_the_order_of_requests() -> None:
    """Also where the later one has its slot first; small ones together."""
    scheduler = scheduler_of(images=encoding())
    images = [image_of(name, 0, 8) for name in "abcd"]
    scheduler.add(request_of("0", 30, [images[0]]))
    scheduler.add(request_of("1", 30, [images[1]], priority=1))
    scheduler.add(request_of("2", 30, [images[2], image_of("d", 8, 8)]))
    plan = next_plan(scheduler)
    assert encoder_of(plan) == [tuple(images[index].digest for index in (0, 2, 3, 1))]
    assert [image.digest for image in plan.new_images] == list(plan.encoder[0].digests)


def test_an_image_that_several_wait_for_is_encoded_once() -> None:
    scheduler = scheduler_of(images=encoding(), prefix_cache=False)
    image = image_of("a", 4, 20)
    for name in ("0", "1", "2"):
        scheduler.add(request_of(name, 30 + int(name), [image]))
    plans = [next_plan(scheduler) for _ in range(4)]
    assert sum(len(plan.new_images) for plan in plans) == 1
    assert sum(len(plan.chunks) for plan in plans[:3]) == 6  # before the image, then all of it
    assert scheduler.images is not None
    assert scheduler.images.counts.images == 1


def test_steps_with_image_tokens_are_charged_to_what_is_launched() -> None:
    scheduler = scheduler_of(images=encoding(), budget=16)
    scheduler.add(request_of("r", 64, [image_of("a", 20, 8)]))
    charged: dict[tuple[int, int], bool] = {}
    while sum(count for _, count in charged) < 64:
        scheduler.budget = PrefillBudget(graph_sizes=(32,))
        plan = plan_of(scheduler)
        sampled = [[5] for chunk in plan.chunks if chunk.sample]
        scheduler.update(plan, StepResult(sampled, [None] * len(sampled)), 0.5)
        if plan.chunks:
            launched, replayed = scheduler.budget.cost.per_token, scheduler.budget.graph_cost.per_token
            assert (launched is None) != (replayed is None)
            charged[chunks_of(plan)["r"]] = launched is not None
    assert charged == {(0, 16): False, (16, 16): True, (32, 16): False, (48, 16): False}


def big(name: str, count: int = 150) -> ImageSpan:
    """One that takes several pieces."""
    image = image_of(name, 4, count)
    assert SPEC.work(image.grid) > 3 * 256
    return image


def test_a_big_image_is_encoded_in_pieces_that_steps_of_others_carry() -> None:
    scheduler = scheduler_of(images=encoding(), budget=64)
    add(scheduler, "text", 8)
    next_plan(scheduler)
    image = big("a")
    scheduler.add(request_of("r", 170, [image]))
    pieces: list[int] = []
    while not pieces or sum(pieces) < SPEC.work(image.grid):
        plan = plan_of(scheduler)
        deliver(scheduler, plan)
        assert "text" in chunks_of(plan)
        assert not (plan.encoder and chunks_of(plan).keys() != {"text"}), "a step has prefill or encoding"
        pieces += [chunk.row_layers for chunk in plan.encoder]
    assert sum(pieces) == SPEC.work(image.grid)
    assert len(pieces) > 3
    assert max(pieces) <= 256  # nothing was measured


def test_steps_take_turns_between_prefill_and_encoding() -> None:
    scheduler = scheduler_of(images=encoding(), budget=32, prefix_cache=False)
    scheduler.add(request_of("image", 170, [big("a")]))
    add(scheduler, "long", 200)
    kinds = ["encoder" if plan.encoder else "prefill" for plan in (next_plan(scheduler) for _ in range(7))]
    assert kinds == ["prefill", "encoder"] * 3 + ["prefill"]


def test_an_abort_ends_what_nobody_else_waits_for() -> None:
    scheduler = scheduler_of(images=encoding())
    image = big("a")
    for name in ("0", "1"):
        scheduler.add(request_of(name, 170, [image]))
    while not next_plan(scheduler).encoder:
        pass
    scheduler.abort(["0"])
    plans = [next_plan(scheduler) for _ in range(2)]
    assert [encoder_of(plan) for plan in plans if plan.encoder] == [[(image.digest,)]]  # the other one waits for it
    assert not plans[0].new_images
    scheduler.abort(["1"])
    assert scheduler.images is not None
    assert (scheduler.images.cache.used, scheduler.images.pixel_bytes) == (0, 0)
    add(scheduler, "text", 8)
    assert next_plan(scheduler).freed_images == [image.digest]


def test_the_runner_hears_of_an_abort_also_where_nothing_else_is_to_do() -> None:
    scheduler = scheduler_of(images=encoding())
    image = big("a")
    scheduler.add(request_of("0", 170, [image]))
    while not next_plan(scheduler).encoder:
        pass
    scheduler.abort(["0"])
    assert scheduler.has_work
    plan = next_plan(scheduler)
    assert (plan.freed_images, plan.chunks, plan.encoder) == ([image.digest], [], [])
    assert not scheduler.has_work


def test_embeddings_stay_for_others_until_their_room_is_needed() -> None:
    scheduler = scheduler_of(images=encoding(cache_tokens=40), prefix_cache=False)
    freed = []
    for name, image in enumerate([image_of(each, 0, 20) for each in "abaca"]):
        scheduler.add(request_of(str(name), 30, [image], max_tokens=1))
        while scheduler.has_work:
            freed += next_plan(scheduler).freed_images
    assert scheduler.images is not None
    assert scheduler.images.counts.images == 3  # a, b and c
    assert freed == [image_of("b", 0, 20).digest]  # used longest ago
    assert scheduler.images.counts.hits == 2


def core_with(runner: FakeRunner, cache_tokens: int, **limits: Any) -> EngineCore:
    runner.tower.capacity = cache_tokens
    images = encoding(cache_tokens, runner.max_num_seqs)
    values = {"max_num_seqs": runner.max_num_seqs, "max_model_len": runner.max_model_len, **limits}
    return core_of(runner, num_blocks=runner.num_blocks, images=images, **values)


def test_images_in_opposite_orders_get_through_a_cache_that_holds_one() -> None:
    runner = FakeRunner(num_blocks=64, max_model_len=200)
    core = core_with(runner, 20, enable_prompt_cache=False)
    first = [image_of("x", 2, 20), image_of("y", 25, 20)]
    second = [image_of("y", 2, 20), image_of("x", 25, 20)]
    requests = [request_of(str(index), 50, (first, second)[index % 2]) for index in range(6)]
    core.scheduler.add(*requests[:1])
    for request in requests[1:]:
        core.scheduler.add(request)
    outputs = run(core)
    for request in requests:
        alone = tokens_alone(request.prompt_token_ids, request.sampling, vocab_size=97, images=request.images)[0]
        assert [token for output in outputs[request.request_id] for token in output.token_ids] == alone


def test_a_preempted_request_finds_its_image_again() -> None:
    runner = FakeRunner(num_blocks=8, max_num_seqs=2, max_model_len=120)
    core = core_with(runner, 64, enable_prompt_cache=False)
    requests = [request_of(name, 40, [image_of(name, 10, 20)], max_tokens=40) for name in ("0", "1")]
    for request in requests:
        core.scheduler.add(request)
    run(core)
    assert core.scheduler.stats().preemptions_total > 0
    assert runner.tower.num_encoded == 2


def test_samples_share_the_pixels_and_the_encoding() -> None:
    runner = FakeRunner(num_blocks=64, max_model_len=120)
    core = core_with(runner, 64)
    image = image_of("a", 3, 20)
    sampling = SamplingParams(max_tokens=5, temperature=0.7, seed=3)
    message = GenerateRequest(
        request_id="0",
        sibling_ids=["1", "2"],
        prompt_token_ids=with_images(TEXT[:30], [image]),
        sampling=sampling,
        images=[image],
        pixels=[pixels_of(image)],
    )
    core.add(msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=GenerateRequest))
    assert core.scheduler.images is not None
    assert core.scheduler.images.pixel_bytes == 60
    assert run(core).keys() == {"0", "1", "2"}
    assert runner.tower.num_encoded == 1


def test_requests_that_wait_for_the_encoder_leave_slots_to_others() -> None:
    scheduler = scheduler_of(images=encoding(max_num_seqs=8), slots=8, budget=256)
    for index in range(6):
        scheduler.add(request_of(f"image {index}", 160, [image_of(f"{index}", 0, 150)]))
    add(scheduler, "text", 8)
    plan = next_plan(scheduler)
    assert [new.request_id for new in plan.new_requests] == ["image 0", "image 1", "text"]


def test_less_urgent_text_does_not_pass_those_that_wait_for_the_encoder() -> None:
    scheduler = scheduler_of(images=encoding(max_num_seqs=8), slots=8, budget=256)
    for index in range(3):
        scheduler.add(request_of(f"image {index}", 160, [image_of(f"{index}", 0, 150)]))
    add(scheduler, "less urgent", 8, priority=1)
    plan = next_plan(scheduler)
    assert [new.request_id for new in plan.new_requests] == ["image 0", "image 1"]
    add(scheduler, "text", 8)
    plan = next_plan(scheduler)
    assert scheduler.images is not None
    assert scheduler.images.crowded
    assert [new.request_id for new in plan.new_requests] == ["text"]


def test_a_preempted_request_comes_back_however_many_wait_for_the_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = scheduler_of(images=encoding(max_num_seqs=8), blocks=16, slots=8, budget=256, prefix_cache=False)
    add(scheduler, "text", 30, max_tokens=200)
    scheduler.add(request_of("preempted", 40, [image_of("a", 0, 20)], max_tokens=100, priority=1))
    while not scheduler.stats().preemptions_total:
        next_plan(scheduler)
    monkeypatch.setattr(ImageEncoding, "crowded", True)
    scheduler.add(request_of("new", 40, [image_of("b", 0, 20)], priority=1))
    scheduler.abort(["text"])
    assert [new.request_id for new in next_plan(scheduler).new_requests] == ["preempted"]


NAN = float("nan")
IMAGE = image_of("a", 2, 6)
PIXELS = pixels_of(IMAGE)


@pytest.mark.parametrize(
    ("images", "pixels", "message"),
    [
        ([image_of("a", 2, 40)], [pixels_of(image_of("a", 2, 40))], "takes positions 2 to 41"),
        ([IMAGE, image_of("a", 7, 6)], [PIXELS], "image 2 of 2 takes positions 7 to 12, behind position 8"),
        ([image_of("a", 0, 6)], [PIXELS], "other tokens than 1"),
        ([ImageSpan(2, 6, IMAGE.digest, (1, 2, 4))], [PIXELS], "its grid makes 8 embeddings"),
        ([ImageSpan(2, 6, IMAGE.digest, (0, 2, 3))], [PIXELS], "image 1 of 1: "),
        ([IMAGE], [], "comes without its pixels"),
        ([IMAGE], [ImagePixels(IMAGE.digest, (1, 1, 6), (1, 1, 5, 3), b"x" * 15)], "do not make its grid"),
        ([IMAGE], [ImagePixels(IMAGE.digest, (1, 1, 6), (1, 1, 6, 3), b"x" * 15)], "15 bytes of pixels, not 18"),
    ],
)
def test_images_that_do_not_fit_the_prompt_are_refused(
    images: list[ImageSpan], pixels: list[ImagePixels], message: str
) -> None:
    scheduler = scheduler_of(images=encoding())
    prompt = TEXT[:2] + [IMAGE_TOKEN] * 12 + TEXT[:6]
    by_digest = {image.digest: image for image in pixels}
    with pytest.raises(RequestRefusedError, match=message):
        scheduler.add(Request("r", prompt, SamplingParams(), images=tuple(images), pixels=by_digest))
    assert not scheduler.has_work


@pytest.mark.parametrize(("frames", "fits"), [(1, False), (2, False), (3, False), (4, True)])
def test_frames_that_do_not_fill_the_patches_are_refused(frames: int, fits: bool) -> None:
    """By the scheduler: the tower refuses them, too, when it is too late."""
    spec = replace(SPEC, temporal_patch_size=2)
    image = ImageSpan(0, 8, bytes(32), (2, 1, 4))
    pixels = ImagePixels(image.digest, image.grid, (frames, 1, 4, 3), bytes(12 * frames))
    request = Request("r", [IMAGE_TOKEN] * 8, SamplingParams(), images=(image,), pixels={image.digest: pixels})
    limits = EncoderLimits(spec=spec, cache_bytes=1 << 20, element_bytes=4)
    with nullcontext() if fits else pytest.raises(RequestRefusedError, match="do not make its grid"):
        check_images(request, limits)
    with nullcontext() if fits else pytest.raises(ValueError, match="do not make a grid"):
        PatchedImage(spec, pixels, 0, torch.device("cpu"))


@pytest.mark.parametrize(("interval", "fits"), [(0.0, True), (7.0, True), (7.1, False), (-1.0, False), (NAN, False)])
def test_frames_beyond_the_positions_of_their_prompt_are_refused(interval: float, fits: bool) -> None:
    """Two frames of four tokens each: no angles are planned for more positions than tokens."""
    image = ImageSpan(0, 8, bytes(32), (2, 1, 4), interval)
    pixels = ImagePixels(image.digest, image.grid, (2, 1, 4, 3), bytes(24))
    request = Request("r", [IMAGE_TOKEN] * 8, SamplingParams(), images=(image,), pixels={image.digest: pixels})
    with nullcontext() if fits else pytest.raises(RequestRefusedError, match="positions from each other: too far"):
        check_images(request, EncoderLimits(spec=SPEC, cache_bytes=1 << 20, element_bytes=4))
    if fits:
        _, delta = axis_positions(8, [image], SPEC.merge_size)
        assert delta <= 0


@pytest.mark.parametrize("bounds", [{"max_tokens": 7}, {"cache_bytes": 16}])
@pytest.mark.parametrize(("token", "advice"), [(IMAGE_TOKEN, "send a smaller one"), (9, "send fewer frames, or")])
def test_what_to_do_about_one_that_is_too_large(bounds: dict[str, int], token: int, advice: str) -> None:
    image = ImageSpan(0, 8, bytes(32), (2, 1, 4))
    pixels = ImagePixels(image.digest, image.grid, (2, 1, 4, 3), bytes(24))
    request = Request("r", [token] * 8, SamplingParams(), images=(image,), pixels={image.digest: pixels})
    limits = EncoderLimits(
        **{"spec": replace(SPEC, video_token=9), "cache_bytes": 1 << 20, "element_bytes": 4} | bounds
    )
    with pytest.raises(RequestRefusedError, match=advice) as refused:
        check_images(request, limits)
    assert ("a video" in str(refused.value)) == (token == 9)


def test_an_image_larger_than_the_encoder_cache_is_refused_by_name() -> None:
    scheduler = scheduler_of(images=encoding(cache_tokens=20))
    with pytest.raises(RequestRefusedError, match=r"raise --encoder_cache_bytes to 672"):
        scheduler.add(request_of("r", 60, [image_of("a", 4, 21)]))


def test_an_image_larger_than_a_run_of_the_tower_is_refused_by_name() -> None:
    scheduler = scheduler_of(images=encoding(max_tokens=20))
    scheduler.add(request_of("r", 60, [image_of("a", 4, 20)]))
    with pytest.raises(RequestRefusedError, match=r"image 2 of 2 has 21 tokens, but .* images of 20; send a smaller"):
        scheduler.add(request_of("s", 60, [image_of("b", 4, 2), image_of("a", 6, 21)]))


@pytest.mark.parametrize(("most", "runs"), [(8, [1, 1, 1, 1]), (20, [2, 2]), (24, [3, 1]), (32, [4])])
def test_a_run_has_no_more_tokens_than_memory_is_planned_for(most: int, runs: list[int]) -> None:
    """Though there is time for more."""
    scheduler = scheduler_of(images=encoding(max_tokens=most))
    scheduler.add(request_of("r", 60, [image_of(name, 8 * index, 8) for index, name in enumerate("abcd")]))
    encoded: list[tuple[bytes, ...]] = []
    while scheduler.has_work:
        encoded += encoder_of(next_plan(scheduler))
    assert [len(digests) for digests in dict.fromkeys(encoded)] == runs


def test_a_model_of_text_refuses_images() -> None:
    with pytest.raises(RequestRefusedError, match="takes text alone"):
        scheduler_of().add(request_of("r", 60, [image_of("a", 4, 21)]))


def test_pixels_of_waiting_requests_are_bounded() -> None:
    scheduler = scheduler_of(images=encoding(pixel_bytes=100))
    scheduler.add(request_of("0", 60, [image_of("a", 4, 20)]))
    scheduler.add(request_of("1", 60, [image_of("a", 4, 20)]))  # the same
    with pytest.raises(RequestRefusedError, match="busy") as refused:
        scheduler.add(request_of("2", 60, [image_of("b", 4, 20)]))
    assert refused.value.error.kind == "overloaded"


def test_the_last_piece_of_an_image_that_nobody_holds_is_not_freed_in_its_step() -> None:
    """Its request was preempted meanwhile, and the next image needs the room."""
    scheduler = scheduler_of(
        images=encoding(cache_tokens=150), blocks=26, slots=8, budget=256, prefix_cache=False, max_model_len=300
    )
    for name in ("t0", "t1"):
        add(scheduler, name, 30, max_tokens=200)
    next_plan(scheduler)
    scheduler.add(request_of("late", 150, [image_of("a", 0, 140)], priority=1))
    next_plan(scheduler)
    next_plan(scheduler)
    scheduler.add(request_of("early", 110, [image_of("b", 0, 100)]))
    encoded = set[bytes]()
    for _ in range(120):
        plan = next_plan(scheduler)
        digests = {digest for chunk in plan.encoder for digest in chunk.digests}
        assert digests.isdisjoint(plan.freed_images)
        encoded |= digests
    assert len(encoded) == 2
