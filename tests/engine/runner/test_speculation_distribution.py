"""Speculative decoding samples from the model's own distribution: a chi-square test, which a near miss fails."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from engine_support.feature_load import core_for, free_drafts
from engine_support.heads import save_eagle3
from engine_support.tiny_models import SHAPE, engine_config, load_reference, save_model
from torch import Tensor

from blade_llm.config import SpeculativeConfig
from blade_llm.engine.messages import GenerateRequest
from blade_llm.sampling.parameters import SamplingParams

REQUESTS, TOGETHER = 6000, 24
VOCABULARY = 40
TEMPERATURE = 0.4
PROMPT = random.Random(1).sample(range(3, VOCABULARY), VOCABULARY - 3)
"""Every token that may be sampled has occurred, so n-grams know what followed it."""
SURE = 1e-6
"""A p-value below it is no chance."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("target")
    save_model(folder, "qwen2", vocab_size=VOCABULARY)
    return folder


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("draft")
    save_model(folder, "llama", vocab_size=VOCABULARY, num_hidden_layers=1)
    shape = {"model_vocab_size": VOCABULARY, "vocab_size": 20, "eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    save_eagle3(folder / "head", **shape)
    return folder


def probabilities(folder: Path, temperature: float) -> Tensor:
    """Of the second token after the prompt, whatever the first one is: [vocabulary] fp64."""
    model = load_reference(folder)
    assert model.config.hidden_size == SHAPE["hidden_size"]
    tokens = torch.tensor([[*PROMPT, token] for token in range(VOCABULARY)])
    with torch.no_grad():
        logits = model(tokens).logits.double() / temperature
    first, second = logits[0, -2].softmax(-1), logits[:, -1].softmax(-1)
    return first @ second


def p_value(counts: Tensor, expected: Tensor) -> float:
    """Pearson's chi-square test; tokens that are expected less than ten times count together."""
    groups = torch.where(expected < 10, len(expected), torch.arange(len(expected)))
    found, wanted = (torch.zeros(len(expected) + 1).double().index_add_(0, groups, each) for each in (counts, expected))
    found, wanted = found[wanted > 0], wanted[wanted > 0]
    statistic = ((found - wanted) ** 2 / wanted).sum()
    freedom = torch.tensor((len(wanted) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))


def second_tokens(folder: Path, speculative: SpeculativeConfig | None) -> Tensor:
    """How often each token came second, [vocabulary] fp64."""
    core = core_for(
        engine_config(folder, max_num_seqs=4 * TOGETHER, speculative=speculative), step_seconds=free_drafts()
    )
    outputs: dict[str, list[int]] = {str(seed): [] for seed in range(REQUESTS)}
    for first in range(0, REQUESTS, TOGETHER):  # so few that there is room for draft tokens
        for seed in range(first, first + TOGETHER):
            sampling = SamplingParams(max_tokens=4, temperature=TEMPERATURE, seed=seed, ignore_eos=True)
            core.add(GenerateRequest(request_id=str(seed), prompt_token_ids=PROMPT, sampling=sampling))
        while core.has_work:
            for output in core.step():
                outputs[output.request_id] += output.token_ids
    if speculative is not None:
        counts = core.state(epoch="", sequence=0, draining=False).speculation
        assert counts is not None
        assert counts.draft_tokens > REQUESTS / 2
        assert 0 < counts.accepted_tokens < counts.draft_tokens
    return torch.bincount(torch.tensor([tokens[1] for tokens in outputs.values()]), minlength=VOCABULARY).double()


@pytest.mark.parametrize(
    "method",
    ["normal", "ngram", *(pytest.param(each, marks=pytest.mark.soak) for each in ("draft", "look_ahead", "eagle3"))],
)
def test_tokens_have_the_distribution_of_the_model(folder: Path, other: Path, method: str) -> None:
    speculative = {
        "normal": None,
        "ngram": SpeculativeConfig(method="ngram", gamma=2, ngram_min_match=1),
        "draft": SpeculativeConfig(method="draft", gamma=2, draft_model=str(other)),
        "eagle3": SpeculativeConfig(method="eagle3", gamma=2, draft_model=str(other / "head")),
        "look_ahead": SpeculativeConfig(
            method="look_ahead", look_ahead_window_size=3, look_ahead_gram_size=2, guess_set_size=3
        ),
    }[method]
    counts = second_tokens(folder, speculative)
    assert p_value(counts, REQUESTS * probabilities(folder, TEMPERATURE)) > 1e-3
    for near_miss in (0.9, 1.1):
        assert p_value(counts, REQUESTS * probabilities(folder, near_miss * TEMPERATURE)) < SURE
