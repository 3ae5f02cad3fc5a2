"""Lookahead decoding by models of many kinds: not one token differs from ordinary decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.families import ROWS, save_row
from engine_support.feature_load import core_for, free_drafts, run
from engine_support.tiny_models import engine_config, save_model

from blade_llm.config import SpeculativeConfig
from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import GenerateRequest
from blade_llm.models.errors import ModelFilesError
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.plan import StepPlan

FAMILIES = (
    *("llama", "qwen3", "mistral", "gemma2", "gemma3", "gpt-neox", "opt", "phi3-long", "qwen2-moe", "deepseek-v2"),
    *("deepseek-v3", "llama-modules", "gemma2-modules"),
)
REQUESTS = [
    GenerateRequest(
        request_id=str(number),
        prompt_token_ids=[3 + (number * 7 + index) % (5 + number) for index in range(20 + 9 * number)],
        sampling=SamplingParams(max_tokens=40, temperature=0.8 * (number % 2), seed=number, ignore_eos=True),
    )
    for number in range(6)
]


def look_ahead(window: int = 5, gram: int = 2, guesses: int = 4) -> SpeculativeConfig:
    return SpeculativeConfig(
        method="look_ahead", look_ahead_window_size=window, look_ahead_gram_size=gram, guess_set_size=guesses
    )


def plans_of(core: EngineCore) -> list[StepPlan]:
    """The plans that the core's runner gets from now on."""
    plans: list[StepPlan] = []
    launch = core._runner.launch_forward

    def follow(plan: StepPlan, *masks: Any) -> Any:
        plans.append(plan)
        return launch(plan, *masks)

    core._runner.launch_forward = follow  # type: ignore[method-assign]
    return plans


def tokens_of(core: EngineCore) -> dict[str, list[int]]:
    return {name: result.tokens for name, result in run(core, REQUESTS, stagger=2).items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_no_token_differs(tmp_path: Path, family: str) -> None:
    save_row(tmp_path, ROWS[family])
    settings: dict[str, Any] = {"max_num_seqs": 8, "max_model_len": 200}
    expected = tokens_of(core_for(engine_config(tmp_path, **settings)))
    core = core_for(engine_config(tmp_path, speculative=look_ahead(), **settings), step_seconds=free_drafts())
    plans = plans_of(core)
    assert tokens_of(core) == expected
    counts = core.state(epoch="", sequence=0, draining=False).speculation
    assert counts is not None
    assert counts.draft_tokens > 0
    assert any(plan.has_trees for plan in plans)


@pytest.mark.parametrize(("window", "gram", "guesses"), [(1, 2, 1), (2, 3, 4), (15, 5, 15), (3, 8, 2), (60, 2, 60)])
def test_sizes(tmp_path: Path, window: int, gram: int, guesses: int) -> None:
    """Up to as many as there are bits; accepted guesses of other branches than the first are moved."""
    save_model(tmp_path, "qwen2")
    settings: dict[str, Any] = {"max_num_seqs": 128, "max_model_len": 200, "kv_cache_bytes": 32 << 20}
    expected = tokens_of(core_for(engine_config(tmp_path, **settings)))
    config = engine_config(tmp_path, speculative=look_ahead(window, gram, guesses), **settings)
    core = core_for(config, step_seconds=free_drafts())
    plans = plans_of(core)
    assert tokens_of(core) == expected
    if guesses > 2:
        assert any(plan.kv_copies for plan in plans)
    most = max(chunk.num_draft_tokens for plan in plans for chunk in plan.chunks)
    assert most <= config.speculative.look_ahead_tokens  # type: ignore[union-attr]
    assert most > (window - 1 if window > 1 else 0)


def test_a_window_where_nothing_is_left_to_sample(tmp_path: Path) -> None:
    """It guesses on with some token, as what the output itself has goes on."""
    save_model(tmp_path, "qwen2")
    dead_end = ((61, 60), (61, 61), (61, 62))
    sampling = SamplingParams(
        max_tokens=20,
        temperature=0.0,
        ignore_eos=True,
        allowed_token_ids=(60, 61, 62),
        bad_words_token_ids=dead_end,
        logit_bias={60: 100.0},
    )
    request = GenerateRequest(request_id="r", prompt_token_ids=[61] * 20 + [5], sampling=sampling)
    settings: dict[str, Any] = {"max_num_seqs": 8, "max_model_len": 200}
    core = core_for(engine_config(tmp_path, speculative=look_ahead(), **settings), step_seconds=free_drafts())
    plans = plans_of(core)
    assert run(core, [request], stagger=1)["r"].tokens == [60] * 20
    assert any(plan.has_trees for plan in plans)


def test_no_token_differs_in_bf16_where_steps_are_deterministic(tmp_path: Path) -> None:
    save_model(tmp_path, "qwen2", torch.bfloat16)
    settings: dict[str, Any] = {"max_num_seqs": 8, "max_model_len": 200, "dtype": "bfloat16", "deterministic": True}
    expected = tokens_of(core_for(engine_config(tmp_path, **settings)))
    core = core_for(engine_config(tmp_path, speculative=look_ahead(), **settings), step_seconds=free_drafts())
    assert tokens_of(core) == expected
    counts = core.state(epoch="", sequence=0, draining=False).speculation
    assert counts is not None
    assert counts.accepted_tokens > 0


@pytest.mark.parametrize(
    ("family", "sizes", "says"),
    [
        ("bloom", {}, "does not go together with ALiBi"),
        ("mistral", {"window": 22}, "a window of 24 tokens, and lookahead decoding goes on for 24: lower"),
        ("gemma2-modules", {"window": 22}, "a window of 24 tokens"),
    ],
)
def test_a_model_whose_attention_cannot_branch_is_refused(
    tmp_path: Path, family: str, sizes: dict[str, int], says: str
) -> None:
    save_row(tmp_path, ROWS[family])
    with pytest.raises(ModelFilesError, match=says):
        core_for(engine_config(tmp_path, speculative=look_ahead(**sizes)))
