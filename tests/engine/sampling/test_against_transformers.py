"""What a token is sampled from equals what transformers' logits processors make of the same logits: each parameter
alone, and many together."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from engine_support.by_transformers import probabilities_by_transformers
from engine_support.sampled_slots import Slot, probabilities

from blade_llm.kernels import penalties, top_k_top_p
from blade_llm.sampling.parameters import SamplingParams

TOKENS, PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3], 4
STOPS = (1, 5)

ALONE = [
    SamplingParams(),
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.9),
    SamplingParams(temperature=1.3, top_k=5),
    SamplingParams(top_k=1),
    SamplingParams(top_k=100_000),
    SamplingParams(top_k=-1, top_p=0.8),
    SamplingParams(temperature=0.6, top_p=0.05),
    SamplingParams(top_p=0.999),
    SamplingParams(temperature=1.5, top_k=40, top_p=0.9),
    SamplingParams(min_p=0.05),
    SamplingParams(temperature=1.3, top_k=50, top_p=0.97, min_p=0.02),
    SamplingParams(repetition_penalty=1.7),
    SamplingParams(temperature=0.8, repetition_penalty=0.6, top_k=20, top_p=0.7),
    SamplingParams(presence_penalty=1.5),
    SamplingParams(presence_penalty=-2.0),
    SamplingParams(frequency_penalty=0.7),
    SamplingParams(frequency_penalty=-0.4),
    SamplingParams(logit_bias={0: 5.0, 9: -3.5, 17: 100.0, 4: -100.0}),
    SamplingParams(min_tokens=7, max_tokens=8),
    SamplingParams(min_tokens=6, max_tokens=8),
    SamplingParams(min_tokens=8, max_tokens=8, logit_bias={1: 50.0, 2: 1.0}),
]
KERNELS = pytest.mark.parametrize("kernels", ["native", "torch"], indirect=True)


@pytest.fixture
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the native operators cannot be built these are torch's, twice."""
    if request.param == "torch":
        for operator in (penalties, top_k_top_p):
            monkeypatch.setattr(operator, "backend_of", lambda tensor: "torch")


def check(params: SamplingParams, logits: torch.Tensor, tokens: list[int], allowed: list[int] | None = None) -> None:
    slot = Slot(params, tokens=tokens, prompt=PROMPT, masked=STOPS if params.min_tokens else ())
    expected = probabilities_by_transformers(
        params, logits, tokens[:PROMPT], tokens[PROMPT:], stops=STOPS, allowed=allowed
    )
    found = probabilities(slot, logits, allowed).double()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(found > 0, expected > 0) or float(expected[(found > 0) != (expected > 0)].sum()) < 1e-12


@KERNELS
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("vocabulary", [60, 5000])
@pytest.mark.parametrize("spread", [0.5, 4.0], ids=["flat", "peaked"])
@pytest.mark.parametrize("params", ALONE, ids=range(len(ALONE)))
def test_each_parameter_alone(params: SamplingParams, spread: float, vocabulary: int) -> None:
    logits = torch.randn(vocabulary, generator=torch.Generator().manual_seed(vocabulary)) * spread
    check(params, logits, TOKENS)


@KERNELS
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("allowed", [[7], list(range(0, 60, 7)), list(range(2, 59))], ids=len)
def test_a_mask_alone(allowed: list[int]) -> None:
    logits = torch.randn(60, generator=torch.Generator().manual_seed(1)) * 2
    check(SamplingParams(), logits, TOKENS, allowed)


@KERNELS
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("number", range(200))
def test_random_combinations(number: int) -> None:
    choose = random.Random(number)
    vocabulary = choose.choice([40, 333, 3001])
    tokens = [choose.randrange(vocabulary) for _ in range(PROMPT + choose.randrange(0, 40))]
    tokens += choose.choices(tokens, k=10)

    def maybe(value: Any, off: Any) -> Any:
        return value if choose.random() < 0.5 else off

    output = len(tokens) - PROMPT
    params = SamplingParams(
        temperature=maybe(choose.uniform(0.2, 2.0), 1.0),
        top_k=maybe(choose.choice([1, 2, 7, 50, 2000]), 0),
        top_p=maybe(choose.uniform(0.05, 0.999), 1.0),
        min_p=maybe(choose.uniform(0.001, 0.5), 0.0),
        repetition_penalty=maybe(choose.uniform(0.5, 2.0), 1.0),
        presence_penalty=maybe(choose.uniform(-2.0, 2.0), 0.0),
        frequency_penalty=maybe(choose.uniform(-2.0, 2.0), 0.0),
        logit_bias=maybe(
            {choose.randrange(vocabulary): choose.uniform(-20.0, 20.0) for _ in range(choose.randrange(1, 30))}, {}
        ),
        min_tokens=maybe(choose.choice([output, output + 1, output + 9]), 0),
        max_tokens=1000,
    )
    assert params.problem() is None
    allowed = maybe(sorted({*choose.choices(range(vocabulary), k=choose.choice([3, 30, vocabulary])), 7, 8}), None)
    spread = choose.choice([0.3, 1.0, 3.0])
    logits = torch.randn(vocabulary, generator=torch.Generator().manual_seed(number)) * spread
    check(params, logits, tokens, allowed)
