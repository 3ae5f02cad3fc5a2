"""Images beside CUDA graphs and speculative decoding: not one token differs."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_support.recording_graphs import RecordingGraphs, prepare_from_device
from engine_support.tiny_models import engine_config, save_model
from engine_support.vision_models import (
    IMAGE,
    VisionModel,
    check_answers,
    core_of,
    greedy,
    prompts_of,
    run,
    save_vision_model,
    several_images,
)

from blade_llm.config import SpeculativeConfig
from blade_llm.engine.messages import GenerateRequest
from blade_llm.runner.torch_runner import TorchRunner
from blade_llm.sampling.parameters import SamplingParams

COUNT = 12
Expected = list[tuple[list[int], list[float]]]


@pytest.fixture(scope="module", params=["qwen2-vl", "qwen3-vl"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VisionModel:
    return save_vision_model(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def expected(model: VisionModel) -> Expected:
    return [greedy(model, prompt, COUNT) for prompt in prompts_of(model)]


def test_graphs_gather_positions_on_three_axes(
    model: VisionModel, expected: Expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decodes and steps of text replay graphs; a step that is fed with an image is launched."""
    monkeypatch.setattr("blade_llm.runner.forward_pass.prepare", prepare_from_device)
    backend = RecordingGraphs()
    limits = {"max_num_seqs": 5, "max_batch_tokens": 16, "max_kv_blocks": 64, "max_model_len": 256}
    sizes = {"cuda_graph_batch_sizes": (1, 4), "cuda_graph_token_sizes": (8, 16)}
    runner = TorchRunner(engine_config(model.folder, **limits, **sizes), model.config, lambda: backend)
    runner.warm_up()
    core = core_of(model, runner, **limits)
    check_answers(
        run(core, [prompt.request(str(index), COUNT) for index, prompt in enumerate(prompts_of(model))]), expected
    )
    decodes = [index for index, size in enumerate(backend.captured) if size in (1, 4)]
    assert any(index in decodes for index in backend.order)
    assert any(index not in decodes for index in backend.order)
    assert runner.images is not None
    assert (runner.images.axes is None) == (model.spec.family == "internvl")


@pytest.mark.parametrize("method", ["ngram", "draft", "look_ahead"])
def test_drafts_change_nothing(
    model: VisionModel, expected: Expected, method: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The draft model sees image tokens where the model sees images."""
    options: dict[str, SpeculativeConfig] = {
        "ngram": SpeculativeConfig(method="ngram", ngram_min_match=1),
        "look_ahead": SpeculativeConfig(
            method="look_ahead", look_ahead_window_size=5, look_ahead_gram_size=2, guess_set_size=4
        ),
    }
    if method == "draft":
        folder: Path = tmp_path_factory.mktemp("draft")
        save_model(folder, "llama", num_hidden_layers=1)
        options["draft"] = SpeculativeConfig(method="draft", draft_model=str(folder))
    core = core_of(model, speculative=options[method], max_batch_tokens=40)
    requests = [prompt.request(str(index), COUNT) for index, prompt in enumerate(prompts_of(model))]
    check_answers(run(core, requests), expected)


def test_a_batch_of_text_is_what_it_is_without_images(model: VisionModel) -> None:
    """Also in a slot that had images before."""
    core = core_of(model, max_num_seqs=1)
    run(core, [several_images(model).request("0", 2)])
    prompt = list(range(2, 40))
    sampling = SamplingParams(temperature=0.0, max_tokens=COUNT, ignore_eos=True, seed=1)
    text = GenerateRequest(request_id="1", prompt_token_ids=prompt, sampling=sampling)
    assert run(core, [text])["1"].tokens == run(core_of(model), [text])["1"].tokens
    assert IMAGE not in prompt
