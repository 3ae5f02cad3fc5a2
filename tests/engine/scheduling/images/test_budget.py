"""How much of the encoder's work a step carries: others hardly wait for it, whatever it costs."""

from __future__ import annotations

import pytest
from engine_support.async_device import AsyncDevice
from engine_support.fake_core import core_of
from engine_support.fake_runner import FakeRunner
from engine_support.images import encoding, image_of, pixels_of, with_images

from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.budget.encoder import EncoderBudget
from blade_llm.scheduling.plan import StepPlan
from blade_llm.scheduling.request import Request

DECODE = 0.010
"""Seconds of a step of decodes."""
LENGTH = 900
STREAMS = 4


def seconds_of(plan: StepPlan, row_layer: float, fixed: float) -> float:
    """A device on which decodes cost what the weights do, and all else by its amount."""
    prefill = sum(chunk.count for chunk in plan.chunks if chunk.count > 1)
    work = sum(chunk.row_layers for chunk in plan.encoder)
    decode = DECODE if any(chunk.count == 1 for chunk in plan.chunks) else 0.0
    return decode + 1e-4 * prefill + (fixed + row_layer * work if work else 0.0)


@pytest.mark.parametrize("fixed", [0.0, 0.002])
@pytest.mark.parametrize("row_layer", [1e-6, 1e-5, 6e-5])
def test_streams_hardly_wait_while_images_come(row_layer: float, fixed: float) -> None:
    """An image takes 50 ms to 3 s, and ten come at once."""
    runner = FakeRunner(num_blocks=2000, max_num_seqs=32, max_model_len=1200, verify=False)
    device = AsyncDevice(
        runner, forward_seconds=lambda plan: seconds_of(plan, row_layer, fixed), sampling_seconds=0.0, on_host=True
    )
    core = core_of(
        device,
        num_blocks=2000,
        max_num_seqs=32,
        max_model_len=1200,
        max_batch_tokens=512,
        overlap=False,
        clock=device.clock,
        images=encoding(max_num_seqs=32),
    )
    sampling = SamplingParams(max_tokens=1100, temperature=0, ignore_eos=True)
    for index in range(STREAMS):
        core.scheduler.add(Request(f"text {index}", [10 + index, 11, 12], sampling))
    gaps: dict[str, list[float]] = {"calm": [], "images": []}
    last: dict[str, float] = {}
    pictures = set()
    for step in range(3000):
        if step == 60:
            for index in range(10):
                image = image_of(str(index), 4, LENGTH)
                prompt = with_images([7] * (LENGTH + 10), [image])
                request = Request(f"image {index}", prompt, SamplingParams(max_tokens=1, temperature=0))
                request.images, request.pixels = (image,), {image.digest: pixels_of(image)}
                core.scheduler.add(request)
                pictures.add(request.request_id)
        for output in core.step():
            pictures.discard(output.request_id)
            if output.request_id.startswith("text"):
                if output.request_id in last:
                    gaps["images" if step > 60 else "calm"].append(device.now - last[output.request_id])
                last[output.request_id] = device.now
        if step > 60 and not pictures:
            break
    assert not pictures, "an image starves"
    calm, busy = sorted(gaps["calm"][20:]), sorted(gaps["images"])
    assert busy[int(0.99 * len(busy))] <= 2.0 * calm[len(calm) // 2]
    assert sum(busy) / len(busy) <= 1.8 * calm[len(calm) // 2]
    assert runner.tower.num_encoded == 10


def test_without_decodes_pieces_are_bounded_in_seconds() -> None:
    budget = EncoderBudget(least=64, most_seconds=0.2)
    pieces = []
    for _ in range(20):
        pieces.append(budget.allowance(0, None))
        budget.observe(0, pieces[-1], pieces[-1] * 1e-5, None)
    assert pieces == sorted(pieces)
    assert pieces[-1] == pytest.approx(20_000, abs=1)


def test_a_dearer_image_makes_pieces_smaller_soon() -> None:
    budget = EncoderBudget(least=8)
    for _ in range(20):
        piece = budget.allowance(0, None)
        budget.observe(0, piece, piece * 1e-6, None)
    for _ in range(3):
        budget.observe(0, piece, piece * 3e-6, None)
    assert budget.allowance(0, None) == pytest.approx(0.2 / 3e-6, rel=0.01)


@pytest.mark.parametrize("wait", [0.03, 0.2])
def test_steps_that_wait_for_other_programs_do_not_make_the_work_look_dear(wait: float) -> None:
    """Every fourth one does. Charged to small pieces, such a wait would keep them small."""
    budget, decode, row_layer = EncoderBudget(least=64), 0.04, 5e-5
    done = steps = 0
    for number in range(400):
        piece = budget.allowance(4, decode)
        if piece:
            budget.observe(4, piece, decode + row_layer * piece + (wait if number % 4 == 3 else 0.0), decode)
        if number >= 100:
            done, steps = done + piece, steps + 1
    assert done * row_layer >= 0.8 * steps * 0.6 * decode


def test_the_least_piece_is_made_good_by_pauses() -> None:
    """Encoding gets on, and the mean time between tokens stays where it should be."""
    budget = EncoderBudget(least=64)
    seconds, steps, done = 0.0, 400, 0
    for _ in range(steps):
        piece = budget.allowance(4, DECODE)
        took = DECODE + piece * 1e-3
        seconds, done = seconds + took, done + piece
        if piece:
            budget.observe(4, piece, took, DECODE)
    assert done > 0
    assert seconds / steps <= 2.0 * DECODE


def test_decodes_alone_are_measured_first() -> None:
    budget = EncoderBudget()
    assert budget.allowance(4, None) == 0
    assert budget.allowance(4, DECODE) > 0
