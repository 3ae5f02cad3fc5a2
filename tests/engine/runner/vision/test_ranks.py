"""Images in an engine of several ranks: each rank encodes them for itself, stages of a pipeline that need them."""

from __future__ import annotations

from typing import Any

import pytest
from engine_support.thread_ranks import ThreadRanks
from engine_support.tiny_models import engine_config
from engine_support.vision_models import (
    VisionModel,
    check_answers,
    core_of,
    greedy,
    prompts_of,
    run,
    save_vision_model,
    several_images,
)

from blade_llm.check.rank_memory import rank_memory
from blade_llm.engine.core import EngineCore
from blade_llm.models.dtypes import DTYPE_BYTES
from blade_llm.models.sharding import rank_model
from blade_llm.models.vision.memory import tower_bytes
from blade_llm.parallel.layout import RankLayout
from blade_llm.runner.vision.memory import encoder_bytes, has_axes, table_bytes, tower_of

COUNT = 8
FAMILIES = ["qwen2-vl", "qwen2.5-vl", "qwen3-vl", "internvl"]
LAYOUTS: list[dict[str, Any]] = [
    {"tensor_parallel_size": 2},
    {"pipeline_parallel_size": 2, "pipeline_micro_batch": 4},
    {"pipeline_parallel_size": 3, "max_batch_tokens": 13},
    {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "cache_tokens": 12, "max_num_seqs": 2},
    {"tensor_parallel_size": 2, "max_kv_blocks": 12, "max_model_len": 100},
]


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VisionModel:
    return save_vision_model(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def expected(model: VisionModel) -> list[tuple[list[int], list[float]]]:
    return [greedy(model, prompt, COUNT) for prompt in prompts_of(model)]


def core_of_ranks(model: VisionModel, cache_tokens: int = 1 << 12, **fields: Any) -> EngineCore:
    nbytes = cache_tokens * model.spec.embedding_elements * DTYPE_BYTES["float32"]
    ranks = ThreadRanks(engine_config(model.folder, encoder_cache_bytes=nbytes, **fields))
    return core_of(model, ranks, cache_tokens, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("fields", LAYOUTS, ids=lambda fields: " ".join(f"{each}" for each in fields.values()))
def test_tokens_are_those_of_transformers(
    model: VisionModel, expected: list[tuple[list[int], list[float]]], fields: dict[str, Any]
) -> None:
    core = core_of_ranks(model, **fields)
    requests = [prompt.request(str(index), COUNT) for index, prompt in enumerate(prompts_of(model))]
    check_answers(run(core, requests), expected)
    assert core.scheduler.images is not None
    assert core.scheduler.images.counts.images >= 4


@pytest.mark.parametrize(
    "layout", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}], ids=["ranks", "stages"]
)
def test_a_second_question_about_an_image_encodes_nothing(model: VisionModel, layout: dict[str, int]) -> None:
    core = core_of_ranks(model, **layout)
    prompt = several_images(model)
    run(core, [prompt.request("0", 2)])
    assert core.scheduler.images is not None
    encoded = core.scheduler.images.counts.images
    second = prompt.text(9, 20)
    answers = run(core, [second.request("0", COUNT)])
    check_answers(answers, [greedy(model, second, COUNT)])
    assert core.scheduler.images.counts.images == encoded
    assert (answers["0"].cached or 0) >= len(second.tokens) - 9 - 16


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
