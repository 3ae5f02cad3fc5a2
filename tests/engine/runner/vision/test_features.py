"""Images beside everything that requests and engines can have besides: each request gets in company what it gets alone,
and with an adapter what the merged model gives it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from engine_support.adapter_models import FEATURES, GREEDY, Got, build_core, check_equal, run
from engine_support.adapters import merge, targets_of, write_adapter
from engine_support.rank_adapters import ranked_core
from engine_support.tiny_models import engine_config
from engine_support.vision_models import Prompt, VisionModel, grids_of, save_vision_model

from blade_llm.config import EngineConfig, SpeculativeConfig
from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import GenerateRequest
from blade_llm.scheduling.images.limits import EncoderLimits

ADAPTERS = ("", "one", "two")
"""The base model's is empty."""
DISTINCT_IMAGES = 4
ENGINES: dict[str, dict[str, Any]] = {
    "room": {},
    "preempting": {"max_kv_blocks": 32},
    "chunks": {"max_batch_tokens": 24},
    "no prefix cache": {"enable_prompt_cache": False},
    "small encoder cache": {"cache_tokens": 12},
    "ngram": {"speculative": SpeculativeConfig(method="ngram", ngram_min_match=1)},
    "ranks": {"tensor_parallel_size": 2, "max_batch_tokens": 40},
    "stages": {"pipeline_parallel_size": 2, "pipeline_micro_batch": 4},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> VisionModel:
    """With adapters and what they make of it beside it."""
    root = tmp_path_factory.mktemp("models")
    found: VisionModel = save_vision_model(root / "base", "qwen2-vl")
    for seed, name in enumerate(ADAPTERS[1:]):
        write_adapter(root / name, targets_of(root / "base"), rank=4 << seed, seed=seed)
        merge(root / "base", root / name, root / f"merged-{name}")
    return found


@pytest.fixture(scope="module")
def expected(model: VisionModel) -> dict[str, Got]:
    """By the name of a request: of engines without adapters."""
    found: dict[str, Got] = {}
    for adapter in ADAPTERS:
        core = core_of(model, model.folder.with_name(f"merged-{adapter}") if adapter else model.folder)
        found |= run(core, requests_of(model, adapter, named=False))
    return found


def core_of(model: VisionModel, folder: Path, *, cache_tokens: int = 1 << 12, **options: Any) -> EngineCore:
    """``cache_tokens``: image tokens that the encoder cache holds."""
    nbytes = cache_tokens * model.spec.embedding_elements * 4
    limits = {"max_num_seqs": 16, "max_model_len": 256, "encoder_cache_bytes": nbytes}
    images = EncoderLimits(spec=model.spec, cache_bytes=nbytes, element_bytes=4)
    config: EngineConfig = engine_config(folder, **limits, **options)
    if config.num_ranks == 1:
        return build_core(config, images=images)
    core: EngineCore = ranked_core(config, images=images)[0]
    return core


def with_adapters(model: VisionModel, **options: Any) -> EngineCore:
    modules = tuple((name, str(model.folder.with_name(name))) for name in ADAPTERS[1:])
    return core_of(model, model.folder, enable_lora=True, max_loras=2, lora_modules=modules, **options)


def prompt_of(model: VisionModel, number: int) -> Prompt:
    """A beginning that all have, which ends in the middle of a block and of an image's tokens, and an image that some
    have."""
    small, large = grids_of(model)
    prompt = Prompt().text(25, 1).image(model.spec, large, 3).text(4 + number, number)
    return prompt.image(model.spec, small, number % (DISTINCT_IMAGES - 1)).text(6, 60)


def request_of(prompt: Prompt, name: str, **fields: Any) -> GenerateRequest:
    siblings = [f"{name}/{each}" for each in fields.get("sibling_ids", [])]
    values = {"sampling": GREEDY, "images": prompt.spans, "pixels": prompt.pixels, **fields, "sibling_ids": siblings}
    return GenerateRequest(request_id=name, prompt_token_ids=prompt.tokens, **values)


def requests_of(model: VisionModel, adapter: str, *, named: bool = True) -> list[GenerateRequest]:
    """One for each feature. ``named``: they ask for the adapter, else their engine is of the merged model."""
    return [
        request_of(prompt_of(model, number), f"{adapter}/{what}", adapter=adapter if named else "", **fields)
        for number, (what, fields) in enumerate(FEATURES.items())
    ]


@pytest.mark.parametrize("name", ENGINES)
def test_each_feature_with_each_adapter(model: VisionModel, expected: dict[str, Got], name: str) -> None:
    core = with_adapters(model, **ENGINES[name])
    together = run(core, [request for adapter in ADAPTERS for request in requests_of(model, adapter)])
    assert together.keys() == expected.keys()
    for each, got in together.items():
        check_equal(got, expected[each])
    state = core.state(epoch="", sequence=0, draining=False)
    assert (state.preemptions_total > 0) == (name == "preempting")
    assert (state.speculation is not None and state.speculation.accepted_tokens > 0) == (name == "ngram")
    assert core.scheduler.images is not None
    if name == "room":  # the tower has no adapters, so that one embedding is for all of them
        assert core.scheduler.images.counts.images == DISTINCT_IMAGES


def test_adapters_and_images_matter(expected: dict[str, Got], model: VisionModel) -> None:
    number = [*FEATURES].index("log-probabilities")
    small, large = grids_of(model)
    other = Prompt().text(25, 1).image(model.spec, large, 8).text(4 + number, number)
    other.image(model.spec, small, 9).text(6, 60)
    assert other.tokens == prompt_of(model, number).tokens
    found = run(core_of(model, model.folder), [request_of(other, "x", **FEATURES["log-probabilities"])])["x"]
    several = [found, *(expected[f"{adapter}/log-probabilities"] for adapter in ADAPTERS)]
    for one, another in itertools.combinations([each.logprobs[0].chosen for each in several], 2):
        assert abs(one - another) > 0.001


@pytest.fixture(scope="module", params=["int8", "mix_i8i4"])
def quantised(model: VisionModel, request: pytest.FixtureRequest) -> tuple[str, dict[str, Got]]:
    """A method, and what requests get one after the other."""
    core = core_of(model, model.folder, kv_cache_quant=request.param, enable_prompt_cache=False)
    alone = {name: got for each in requests_of(model, "") for name, got in run(core, [each]).items()}
    return request.param, alone


@pytest.mark.parametrize("name", ["room", "preempting", "chunks", "ngram"])
def test_a_quantised_cache(model: VisionModel, quantised: tuple[str, dict[str, Got]], name: str) -> None:
    method, alone = quantised
    core = core_of(model, model.folder, kv_cache_quant=method, **ENGINES[name])
    for each, got in run(core, requests_of(model, "")).items():
        check_equal(got, alone[each])


@pytest.mark.parametrize("what", ["plain", "sampled", "penalties and bias"])
@pytest.mark.parametrize("adapter", ["", "two"])
def test_an_output_that_another_engine_began(
    model: VisionModel, expected: dict[str, Got], what: str, adapter: str
) -> None:
    number, whole = [*FEATURES].index(what), expected[f"{adapter}/{what}"].tokens
    fields = {**FEATURES[what], "adapter": adapter, "output_token_ids": whole[:20]}
    core = with_adapters(model)
    assert run(core, [request_of(prompt_of(model, number), "x", **fields)])["x"].tokens == whole[20:]
