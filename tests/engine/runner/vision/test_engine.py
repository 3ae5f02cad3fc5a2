"""Images through scheduler and runner: every request gets what transformers generates, however it is computed."""

from __future__ import annotations

from typing import Any

import pytest
from engine_support.vision_models import Answer, Prompt, VisionModel, core_of, greedy, run, save_vision_model

COUNT = 8
FAMILIES = ["qwen2-vl", "qwen2.5-vl", "qwen3-vl", "internvl"]


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VisionModel:
    return save_vision_model(tmp_path_factory.mktemp(request.param), request.param)


def prompts_of(model: VisionModel) -> list[Prompt]:
    """One with text alone, one that begins with an image, one with several, one that ends with one."""
    spec = model.spec
    if spec.family == "internvl":
        one, two = (1, 4, 4), (3, 4, 4)
    else:
        one, two = (1, 6, 4), (1, 4, 10)
    return [
        Prompt().text(40, 1),
        Prompt().image(spec, one, 2).text(9, 3),
        Prompt()
        .text(21, 4)
        .image(spec, two, 5)
        .text(3, 6)
        .image(spec, one, 2)
        .text(1, 11)
        .image(spec, one, 7)
        .text(12, 8),
        Prompt().text(17, 9).image(spec, two, 10),
    ]


@pytest.fixture(scope="module")
def expected(model: VisionModel) -> list[tuple[list[int], list[float]]]:
    return [greedy(model, prompt, COUNT) for prompt in prompts_of(model)]


def check(answers: dict[str, Answer], expected: list[tuple[list[int], list[float]]]) -> None:
    for index, (tokens, logprobs) in enumerate(expected):
        answer = answers[str(index)]
        assert answer.tokens == tokens, index
        assert answer.logprobs == pytest.approx(logprobs, abs=1e-4)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_batch_tokens": 13},
        {"cache_tokens": 12},
        {"max_kv_blocks": 12, "max_model_len": 100},
        {"enable_prompt_cache": False, "max_num_seqs": 2},
    ],
    ids=["together", "in chunks", "small encoder cache", "few blocks", "two slots"],
)
def test_tokens_are_those_of_transformers(
    model: VisionModel, expected: list[tuple[list[int], list[float]]], fields: dict[str, Any]
) -> None:
    core = core_of(model, **fields)
    requests = [prompt.request(str(index), COUNT) for index, prompt in enumerate(prompts_of(model))]
    check(run(core, requests), expected)
    assert core.scheduler.images is not None
    assert core.scheduler.images.counts.images >= 4
    assert core.scheduler.images.pixel_bytes == 0
