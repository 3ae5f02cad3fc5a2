"""Videos through scheduler and runner, beside images: every request gets what transformers generates."""

from __future__ import annotations

from typing import Any

import pytest
from engine_support.vision_models import Prompt, VisionModel, check_answers, core_of, greedy, run, save_vision_model

COUNT = 8


@pytest.fixture(scope="module", params=["qwen2-vl", "qwen2.5-vl", "qwen3-vl"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VisionModel:
    return save_vision_model(tmp_path_factory.mktemp(request.param), request.param)


def prompts_of(model: VisionModel) -> list[Prompt]:
    """A video alone, one of one patch in time, and several beside images."""
    spec = model.spec
    mixed = Prompt().text(11, 1).video(spec, (3, 4, 6), 2, seconds=0.5).text(4, 3).image(spec, (1, 6, 4), 4)
    mixed.text(2, 5).video(spec, (2, 6, 4), 6, seconds=1.7).text(9, 7)
    return [
        Prompt().text(6, 8).video(spec, (4, 4, 4), 9, seconds=1.5).text(5, 10),
        Prompt().text(3, 11).video(spec, (1, 6, 6), 12).text(7, 13),
        mixed,
    ]


@pytest.fixture(scope="module")
def expected(model: VisionModel) -> list[tuple[list[int], list[float]]]:
    return [greedy(model, prompt, COUNT) for prompt in prompts_of(model)]


@pytest.mark.parametrize("fields", [{}, {"max_batch_tokens": 13}], ids=["together", "in chunks"])
def test_tokens_are_those_of_transformers(
    model: VisionModel, expected: list[tuple[list[int], list[float]]], fields: dict[str, Any]
) -> None:
    core = core_of(model, **fields)
    requests = [prompt.request(str(index), COUNT) for index, prompt in enumerate(prompts_of(model))]
    check_answers(run(core, requests), expected)
    assert core.scheduler.images is not None
    assert core.scheduler.images.pixel_bytes == 0


def test_the_same_frames_at_other_times(model: VisionModel) -> None:
    """Where time is in the positions, neither cache takes them for the same; else both do."""
    slow, fast = (
        Prompt().text(16, 1).video(model.spec, (3, 4, 6), 2, seconds=seconds).text(20, 3) for seconds in (0.5, 1.5)
    )
    core = core_of(model)
    check_answers(run(core, [slow.request("0", COUNT)]), [greedy(model, slow, COUNT)])
    answers = run(core, [fast.request("0", COUNT)])
    check_answers(answers, [greedy(model, fast, COUNT)])
    timed = model.spec.family == "qwen2_5_vl"
    assert (slow.spans == fast.spans) is not timed
    assert (answers["0"].cached == 16) is timed
    assert core.scheduler.images is not None
    assert core.scheduler.images.counts.images == {"qwen2_vl": 1, "qwen2_5_vl": 2, "qwen3_vl": 3}[model.spec.family]
