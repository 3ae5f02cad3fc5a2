"""Speculative decoding with everything that a request can set: not one token differs from ordinary decoding."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.feature_load import Result, check_equal, core_for, free_drafts, requests_of, restricted, run
from engine_support.heads import save_eagle3, save_with_mtp
from engine_support.tiny_models import engine_config, save_model
from safetensors.torch import load_file, save_file

from blade_llm.config import SpeculativeConfig
from blade_llm.engine.messages import GenerateRequest
from blade_llm.models.errors import ModelFilesError
from blade_llm.sampling.parameters import SamplingParams

REQUESTS = restricted(requests_of(24))
METHODS = ("ngram", "equal", "other", "look_ahead", "eagle3", "mtp")
LIMITS: dict[str, dict[str, Any]] = {
    "room": {"max_num_seqs": 24},
    "preempting": {"max_num_seqs": 24, "max_kv_blocks": 40},
    "small steps": {"max_num_seqs": 3, "max_batch_tokens": 24},
    "no prefix cache": {"max_num_seqs": 8, "enable_prompt_cache": False},
}
ALWAYS = {
    "ngram": [*LIMITS],
    "equal": ["room", "preempting"],
    "other": ["preempting", "small steps"],
    "look_ahead": [*LIMITS],
    "eagle3": ["small steps", "no prefix cache"],
    "mtp": ["room", "preempting"],
}
"""Not only in the long tests."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("target")
    save_with_mtp(folder, "qwen3")
    return folder


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft model that hardly ever agrees, of another family and size, and as ``head`` in it a head of EAGLE-3."""
    folder: Path = tmp_path_factory.mktemp("draft")
    save_model(folder, "llama", num_hidden_layers=1)
    save_eagle3(folder / "head", eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, Result]:
    core = core_for(engine_config(folder, max_num_seqs=24, max_model_len=256))
    return run(core, REQUESTS, stagger=1)


def speculative(method: str, folder: Path, other: Path, **options: object) -> SpeculativeConfig:
    if method == "ngram":
        return SpeculativeConfig(method="ngram", ngram_min_match=1, **options)  # type: ignore[arg-type]
    if method == "look_ahead":
        options.pop("gamma", None)
        sizes = {"look_ahead_window_size": 5, "look_ahead_gram_size": 2, "guess_set_size": 4}
        return SpeculativeConfig(method="look_ahead", **(sizes | options))  # type: ignore[arg-type]
    if method == "mtp":
        return SpeculativeConfig(method="mtp", **options)  # type: ignore[arg-type]
    if method == "eagle3":
        return SpeculativeConfig(method="eagle3", draft_model=str(other / "head"), **options)  # type: ignore[arg-type]
    draft = folder if method == "equal" else other
    return SpeculativeConfig(method="draft", draft_model=str(draft), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limits", "method"),
    [
        pytest.param(
            LIMITS[name], method, id=f"{name}-{method}", marks=() if name in ALWAYS[method] else pytest.mark.soak
        )
        for name in LIMITS
        for method in METHODS
    ],
)
def test_no_token_differs(
    folder: Path, other: Path, expected: dict[str, Result], method: str, limits: dict[str, object]
) -> None:
    config = engine_config(folder, max_model_len=256, speculative=speculative(method, folder, other, gamma=3), **limits)
    core = core_for(config, step_seconds=free_drafts())
    found = run(core, REQUESTS, stagger=1)
    assert found.keys() == expected.keys()
    for name, result in found.items():
        check_equal(result, expected[name])
    counts = core.state(epoch="", sequence=0, draining=False).speculation
    assert counts is not None
    assert counts.draft_tokens >= counts.drafts > 0
    assert not counts.failed
    assert counts.accepted_tokens == sum(counts.accepted_per_position)
    if method == "equal":  # not all: outputs end, and a grammar may end them at once
        assert counts.accepted_tokens > 0.9 * counts.draft_tokens


def test_an_equal_draft_model_makes_the_target_compute_a_quarter_of_the_steps(folder: Path) -> None:
    """Sampled at random, too: both use the noise of the position."""
    sampling = SamplingParams(max_tokens=60, temperature=1.0, seed=5, ignore_eos=True)
    config = engine_config(folder, max_model_len=256, speculative=speculative("equal", folder, folder, gamma=3))
    core = core_for(config, step_seconds=free_drafts())
    core.add(GenerateRequest(request_id="r", prompt_token_ids=list(range(3, 40)), sampling=sampling))
    steps = 0
    while core.has_work:
        core.step()
        steps += 1
    assert steps <= 2 + -(-60 // 4)


def test_outputs_say_how_many_draft_tokens_they_are_made_of(folder: Path, other: Path) -> None:
    config = engine_config(folder, max_model_len=256, speculative=speculative("ngram", folder, other, gamma=3))
    core = core_for(config, step_seconds=free_drafts())
    for number in range(4):
        sampling = SamplingParams(max_tokens=30 + number, temperature=0.0, ignore_eos=True)
        core.add(GenerateRequest(request_id=str(number), prompt_token_ids=[5, 6, 7] * 8, sampling=sampling))
    drafted = accepted = 0
    while core.has_work:
        for output in core.step():
            drafted += output.draft_tokens
            accepted += output.accepted_tokens
            assert output.accepted_tokens <= min(output.draft_tokens, len(output.token_ids))
            if output.draft_tokens and output.finish_reason is None:
                assert len(output.token_ids) == output.accepted_tokens + 1
    counts = core.state(epoch="", sequence=0, draining=False).speculation
    assert counts is not None
    assert drafted == counts.draft_tokens > 0
    assert 0 < accepted <= counts.accepted_tokens  # what came behind the last token was accepted, and dropped


def test_a_cached_prompt_is_not_computed_again_by_the_draft_model(folder: Path) -> None:
    config = engine_config(folder, max_model_len=256, speculative=speculative("equal", folder, folder))
    core = core_for(config, step_seconds=free_drafts())
    computed: list[int] = []
    runner = core._runner
    launch = runner.launch_forward

    def record(plan: object, *masks: object) -> object:
        computed.append(sum(chunk.count for chunk in plan.draft_chunks))  # type: ignore[attr-defined]
        return launch(plan, *masks)  # type: ignore[arg-type]

    runner.launch_forward = record  # type: ignore[method-assign,assignment]
    prompt = list(range(3, 103))
    for name in ("first", "second"):
        sampling = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
        run(core, [GenerateRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling)], stagger=1)
        if name == "first":
            assert max(computed) > 90
            computed.clear()
    assert max(computed) < 20


def test_a_draft_model_of_nan_is_switched_off(
    folder: Path, tmp_path: Path, expected: dict[str, Result], caplog: pytest.LogCaptureFixture
) -> None:
    save_with_mtp(tmp_path, "qwen3")
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.norm.weight"] = torch.full_like(weights["model.norm.weight"], 3e38)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = engine_config(
        folder, max_num_seqs=24, max_model_len=256, speculative=speculative("equal", tmp_path, folder)
    )
    core = core_for(config, step_seconds=free_drafts())
    found = run(core, REQUESTS, stagger=1)
    for name, result in found.items():
        check_equal(result, expected[name])
    counts = core.state(epoch="", sequence=0, draining=False).speculation
    assert counts is not None
    assert counts.failed
    assert "draft model computed NaN" in caplog.text


def test_a_draft_model_of_another_vocabulary_is_refused(folder: Path, tmp_path: Path) -> None:
    save_model(tmp_path, "qwen2", vocab_size=5000)
    config = engine_config(folder, speculative=speculative("equal", tmp_path, folder))
    with pytest.raises(ModelFilesError, match="its vocabulary has 5000 tokens"):
        core_for(config)


def test_tokens_that_a_smaller_draft_model_does_not_have_end_nothing(folder: Path, tmp_path: Path) -> None:
    """Vocabularies are padded to other sizes; a bias may ask for a token of the padding."""
    save_model(tmp_path, "qwen2", vocab_size=150)
    core = core_for(
        engine_config(folder, max_model_len=256, speculative=speculative("equal", tmp_path, folder)),
        step_seconds=free_drafts(),
    )
    forced = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True, logit_bias={195: 100.0})
    plain = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
    requests = [
        GenerateRequest(request_id=name, prompt_token_ids=[5, 160, 7], sampling=sampling)
        for name, sampling in (("forced", forced), ("plain", plain))
    ]
    found = run(core, requests, stagger=1)
    assert found["forced"].tokens == [195] * 6
    assert found["plain"].tokens == run(core_for(engine_config(folder)), requests[1:], stagger=1)["plain"].tokens


def test_the_draft_model_is_in_the_memory_plan(folder: Path) -> None:
    plain = core_for(engine_config(folder, max_model_len=256, kv_cache_bytes=4 << 20, max_num_seqs=64))
    config = engine_config(
        folder,
        max_model_len=256,
        kv_cache_bytes=4 << 20,
        max_num_seqs=64,
        speculative=speculative("equal", folder, folder),
    )
    core = core_for(config, step_seconds=free_drafts())
    blocks = [each._runner.num_blocks for each in (plain, core)]  # type: ignore[attr-defined]
    assert blocks[1] == blocks[0] // 2, "the equal draft model has half of the bytes"
    assert core._runner.memory_plan.draft > plain._runner.memory_plan.weights  # type: ignore[attr-defined]


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("method", METHODS)
def test_two_thousand_requests_get_the_same_tokens(folder: Path, other: Path, method: str) -> None:
    """In batches of 1 to 64, with preemption and cache hits, and with another number of draft tokens each time."""
    choose = random.Random(METHODS.index(method))
    for number in range(20):
        requests = requests_of(100, seed=number)
        limits: dict[str, object] = {
            "max_num_seqs": choose.choice([4, 8, 24, 64]),
            "max_batch_tokens": choose.choice([64, 256]),
            "max_kv_blocks": choose.choice([None, 40, 90]),
            "max_model_len": 256,
        }
        expected = run(core_for(engine_config(folder, **limits)), requests, stagger=choose.choice([1, 3]))
        config = speculative(method, folder, other, gamma=choose.randrange(1, 9))
        core = core_for(engine_config(folder, speculative=config, **limits), step_seconds=free_drafts())
        for name, result in run(core, requests, stagger=choose.choice([1, 2, 5])).items():
            check_equal(result, expected[name])
