"""Images through scheduler and runner: every request gets what transformers generates, however it is computed."""

from __future__ import annotations

from typing import Any

import pytest
from engine_support.tiny_models import engine_config
from engine_support.vision_models import (
    Prompt,
    VisionModel,
    check_answers,
    core_of,
    greedy,
    grids_of,
    prompts_of,
    run,
    save_vision_model,
    several_images,
)

from blade_llm.check.rank_memory import rank_memory
from blade_llm.engine.build import build_core
from blade_llm.models.sharding import rank_model
from blade_llm.models.vision.memory import activation_bytes, tower_bytes
from blade_llm.parallel.layout import RankLayout
from blade_llm.runner.vision.memory import encoder_bytes, has_axes, table_bytes, tower_of
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.images.limits import MAX_RUN_IMAGES

COUNT = 8
FAMILIES = ["qwen2-vl", "qwen2.5-vl", "qwen3-vl", "internvl"]


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VisionModel:
    return save_vision_model(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def expected(model: VisionModel) -> list[tuple[list[int], list[float]]]:
    return [greedy(model, prompt, COUNT) for prompt in prompts_of(model)]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_batch_tokens": 13},
        {"cache_tokens": 12},
        {"max_kv_blocks": 12, "max_model_len": 100},
        {"enable_prompt_cache": False, "max_num_seqs": 2},
        {"tensor_parallel_size": 2},
        {"tensor_parallel_size": 2, "max_kv_blocks": 12, "max_model_len": 100},
        {"pipeline_parallel_size": 2, "pipeline_micro_batch": 4},
        {"pipeline_parallel_size": 3, "max_batch_tokens": 13},
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "cache_tokens": 12, "max_num_seqs": 2},
    ],
    ids=[
        *("together", "in chunks", "small encoder cache", "few blocks", "two slots"),
        *("ranks", "ranks, few blocks", "stages", "stages, in chunks", "ranks and stages, small encoder cache"),
    ],
)
def test_tokens_are_those_of_transformers(
    model: VisionModel, expected: list[tuple[list[int], list[float]]], fields: dict[str, Any]
) -> None:
    core = core_of(model, **fields)
    requests = [prompt.request(str(index), COUNT) for index, prompt in enumerate(prompts_of(model))]
    check_answers(run(core, requests), expected)
    assert core.scheduler.images is not None
    assert core.scheduler.images.counts.images >= 4
    assert core.scheduler.images.pixel_bytes == 0


def test_one_to_eight_images_and_64_tokens(model: VisionModel) -> None:
    """Of many shapes, beside text alone, in chunks, with fewer blocks than all of them want."""
    tiles = model.spec.family == "internvl"
    shapes = [(count, 4, 4) for count in (1, 2, 3, 5)] if tiles else [(1, 2, 14), (1, 10, 6), (1, 6, 2), (1, 4, 18)]
    prompts = [Prompt().text(23, 1)]
    for count in (1, 3, 8):
        prompt = Prompt()
        for index in range(count):
            prompt.text(1 + 3 * index % 7, 10 * count + index).image(model.spec, shapes[index % 4], 100 * count + index)
        prompts.append(prompt.text(5, count))
    most = max(len(prompt.tokens) for prompt in prompts) + 64
    core = core_of(model, max_batch_tokens=29, max_kv_blocks=-(-most // 16) + 8, max_model_len=most)
    answers = run(core, [prompt.request(str(index), 64) for index, prompt in enumerate(prompts)])
    assert core.scheduler.stats().preemptions_total
    check_answers(answers, [greedy(model, prompt, 64) for prompt in prompts])


@pytest.mark.parametrize(
    ("forgotten", "fields"),
    [(False, {}), (True, {}), (False, {"tensor_parallel_size": 2}), (False, {"pipeline_parallel_size": 2})],
    ids=["one rank", "forgotten", "ranks", "stages"],
)
def test_a_second_question_about_an_image_encodes_nothing(
    model: VisionModel, forgotten: bool, fields: dict[str, Any]
) -> None:
    """Nor does it compute the image again: no more than a block, and the question. Where a block of text follows the
    images, not even their embeddings are needed."""
    first = several_images(model)
    if forgotten:
        first.text(16, 21)
    second = Prompt(first.tokens[:-12], first.spans, first.pixels).text(9, 20)
    core = core_of(model, **fields)
    run(core, [first.request("0", 2)])
    assert core.scheduler.images is not None
    assert core.scheduler.images.counts.images == 3
    if forgotten:
        cache = core.scheduler.images.cache
        assert cache.reserve(bytes(32), cache.capacity)
        cache.cancel([bytes(32)])
    answers = run(core, [second.request("1", COUNT)])
    check_answers({"0": answers["1"]}, [greedy(model, second, COUNT)])
    assert core.scheduler.images.counts.images == 3
    assert (answers["1"].cached or 0) >= len(second.tokens) - 9 - 16


def test_another_image_in_the_same_place_is_another_prompt(model: VisionModel) -> None:
    one, _ = grids_of(model)
    prompts = [Prompt().text(20, 1).image(model.spec, one, seed).text(30, 2) for seed in (3, 4)]
    core = core_of(model)
    for prompt in prompts:
        answer = run(core, [prompt.request("0", COUNT)])
        check_answers(answer, [greedy(model, prompt, COUNT)])
    assert answer["0"].cached == 16  # the text before


def test_samples_and_beams_share_an_image(model: VisionModel) -> None:
    prompt = several_images(model)
    alone, _ = greedy(model, prompt, COUNT)
    core = core_of(model, max_batch_tokens=19)
    answers = run(core, [prompt.request("0", COUNT, sibling_ids=["1", "2"])])
    assert [answers[name].tokens for name in "012"] == [alone] * 3
    beams = SamplingParams(max_tokens=COUNT, beam_width=2, ignore_eos=True, temperature=0.0, seed=1)
    found = run(core, [prompt.request("3", COUNT, sampling=beams)])["3"].tokens
    assert found == run(core_of(model), [prompt.request("3", COUNT, sampling=beams)])["3"].tokens
    assert core.scheduler.images is not None
    assert core.scheduler.images.counts.images == 3


def test_the_engine_of_a_folder_takes_images_and_plans_memory_for_them(model: VisionModel) -> None:
    core = build_core(engine_config(model.folder, encoder_cache_bytes=1 << 20))
    images, memory = core.scheduler.images, core.info.memory
    assert images is not None
    assert memory is not None
    assert images.limits.cache_bytes == 1 << 20
    assert memory.encoder > 1 << 20
    one, _ = grids_of(model)
    run_of_small_ones = [one] * min(MAX_RUN_IMAGES, images.limits.max_tokens // model.spec.count(one))
    assert len(run_of_small_ones) > 1
    assert activation_bytes(model.spec, "float32", run_of_small_ones) <= memory.encoder - (1 << 20)
    prompt = several_images(model)
    answer = run(core, [prompt.request("0", 4)])["0"]
    assert len(answer.tokens) == 4
    assert images.counts.images == 3


def test_stages_that_need_no_embeddings_have_no_tower(model: VisionModel) -> None:
    config = engine_config(model.folder, pipeline_parallel_size=3)
    layout = RankLayout.of(config)
    parts = [rank_model(model.config, layout, rank) for rank in range(3)]
    for part in parts:
        assert part.stage is not None
        needed = part.stage.layers.start == 0 or part.stage.layers.start < model.spec.levels
        assert (tower_of(config, part) is not None) == needed
    assert tower_of(config, parts[-1]) is None
    table = table_bytes(config.max_num_seqs + 1, 64) if has_axes(model.config) else 0
    assert encoder_bytes(config, parts[-1], "float32", 64) == table
    assert encoder_bytes(config, parts[0], "float32", 64) > table + config.encoder_cache_bytes
    first, *_, last = [rank_memory(config, part, "float32").vision for part in parts]
    assert first > tower_bytes(model.spec, "float32") + config.encoder_cache_bytes > last
