"""Each sampling parameter samples from the distribution that transformers' logits processors define: thousands of
seeded samples, chi-square. Against a distribution that is one token or a few percent off, the same check must fail."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import pytest
import torch
from engine_support.by_transformers import probabilities_by_transformers
from engine_support.token_masks import masks_for
from engine_support.triton_interpreter import DEVICE

from blade_llm.sampling.parameters import SamplingParams
from blade_llm.sampling.sampler import SampledSlots, Sampler
from blade_llm.sampling.table import SamplingTable

NUM_SAMPLES = 20_000
VOCABULARY = 16
# Steps of 0.35 with the order shuffled, and a pair of equals in the middle.
LOGITS = torch.linspace(2.5, -2.75, VOCABULARY)[torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(0))]
LOGITS[3] = LOGITS[9]
PROMPT, OUTPUT = [0, 3, 3, 5, 7], [5, 9, 9, 9, 2, 14]
STOPS = (1, 5)


class Case(NamedTuple):
    """The parameters of sampling, and a near miss that must be distinguished from them."""

    params: SamplingParams
    near_miss: dict[str, Any]


CASES = {
    "plain": Case(SamplingParams(), {"temperature": 1.1}),
    "temperature": Case(SamplingParams(temperature=0.7), {"temperature": 0.63}),
    "hot": Case(SamplingParams(temperature=1.8), {"temperature": 2.1}),
    "top_k": Case(SamplingParams(top_k=6), {"top_k": 7}),
    "top_k of one": Case(SamplingParams(top_k=1), {"top_k": 2}),
    "top_p": Case(SamplingParams(top_p=0.8), {"top_p": 0.73}),
    "narrow top_p": Case(SamplingParams(top_p=0.2), {"top_p": 0.35}),
    "wide top_p": Case(SamplingParams(top_p=0.985), {"top_p": 0.995}),
    "min_p": Case(SamplingParams(min_p=0.15), {"min_p": 0.08}),
    "repetition": Case(SamplingParams(repetition_penalty=1.6), {"repetition_penalty": 1.2}),
    "repetition below one": Case(SamplingParams(repetition_penalty=0.7), {"repetition_penalty": 0.85}),
    "presence": Case(SamplingParams(presence_penalty=0.9), {"presence_penalty": 0.5}),
    "frequency": Case(SamplingParams(frequency_penalty=0.6), {"frequency_penalty": 0.3}),
    "negative": Case(SamplingParams(presence_penalty=-0.8, frequency_penalty=-0.2), {"frequency_penalty": -0.1}),
    "min_tokens": Case(SamplingParams(min_tokens=7, max_tokens=9), {"min_tokens": 6}),
    "logit_bias": Case(
        SamplingParams(logit_bias={7: -1.2, 9: 2.8, 12: -100.0}), {"logit_bias": {7: -1.2, 9: 2.4, 12: -100.0}}
    ),
    "all": Case(
        SamplingParams(
            temperature=1.4,
            top_k=11,
            top_p=0.93,
            min_p=0.06,
            repetition_penalty=1.2,
            presence_penalty=0.3,
            frequency_penalty=0.2,
            min_tokens=7,
            max_tokens=9,
            logit_bias={2: 0.7, 5: 9.0, 11: -1.0},
        ),
        {"top_p": 0.85},
    ),
}


def expected(params: SamplingParams, allowed: Sequence[int] | None = None) -> torch.Tensor:
    return probabilities_by_transformers(params, LOGITS, PROMPT, OUTPUT, stops=STOPS, allowed=allowed)


def sampled_tokens(params: SamplingParams, allowed: Sequence[int] | None = None) -> torch.Tensor:
    """How often each token comes in :data:`NUM_SAMPLES` requests that differ in their seed only."""
    table = SamplingTable(NUM_SAMPLES, DEVICE)
    words: list[int] = []
    for slot in range(NUM_SAMPLES):
        seeded = msgspec.structs.replace(params, seed=slot)
        words += table.record(slot, seeded, num_prompt_tokens=len(PROMPT), masked_until_min_tokens=STOPS)
    table.write_recorded(torch.tensor(words, device=DEVICE))
    tokens = PROMPT + OUTPUT
    token_ids = torch.tensor(tokens, dtype=torch.int32, device=DEVICE).repeat(NUM_SAMPLES, 1)
    slots = torch.arange(NUM_SAMPLES, device=DEVICE)
    sampled = SampledSlots(
        list(range(NUM_SAMPLES)), [len(tokens)] * NUM_SAMPLES, slots, torch.full_like(slots, len(tokens))
    )
    logits = LOGITS.to(DEVICE).repeat(NUM_SAMPLES, 1)
    masks = None if allowed is None else masks_for(sampled.slots, dict.fromkeys(sampled.slots, allowed), VOCABULARY)
    return Sampler(table, token_ids).sample(logits, sampled, masks).tokens.cpu().bincount(minlength=VOCABULARY)


def fits(counts: torch.Tensor, probabilities: torch.Tensor) -> bool:
    """Whether chi-square stays below what it exceeds by chance once in 100,000 (Wilson and Hilferty)."""
    possible = probabilities > 0
    if counts[~possible].any():
        return False
    often = probabilities * NUM_SAMPLES
    degrees = int(possible.sum()) - 1
    if degrees == 0:
        return True
    limit = degrees * (1 - 2 / (9 * degrees) + 4.26 * math.sqrt(2 / (9 * degrees))) ** 3
    return bool(((counts - often).square() / often)[possible].sum() < limit)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_samples_follow_transformers(case: Case) -> None:
    counts = sampled_tokens(case.params)
    assert fits(counts, expected(case.params))
    assert not fits(counts, expected(msgspec.structs.replace(case.params, **case.near_miss)))


@pytest.mark.parametrize("case", ["plain", "top_k", "top_p", "min_p", "all"])
def test_masked_samples_follow_transformers(case: str) -> None:
    """The filters see what the mask leaves."""
    params, allowed = CASES[case].params, [0, 2, 3, 4, 7, 9, 10, 12, 14]
    counts = sampled_tokens(params, allowed)
    assert fits(counts, expected(params, allowed))
    assert not fits(counts, expected(params))
    assert not fits(counts, expected(params, [token for token in allowed if token != 7]))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_one_token_more_or_less_in_the_nucleus_is_noticed(share: float) -> None:
    counts = sampled_tokens(SamplingParams(top_p=share))
    kept = expected(SamplingParams(top_p=share)) > 0
    plain = LOGITS.double().softmax(-1)
    order = plain.argsort(descending=True).tolist()
    inside = int(kept.sum())
    assert fits(counts, expected(SamplingParams(top_p=share)))
    for size in (inside - 1, inside + 1):
        wrong = torch.zeros_like(plain)
        wrong[order[:size]] = plain[order[:size]]
        assert not fits(counts, wrong / wrong.sum())
