"""How a request's answers are looked for: what a beam search takes from the model's defaults."""

from __future__ import annotations

from typing import Any

from blade_llm.api.requests import CompletionRequest, sampling_params
from blade_llm.api.search import search_of
from blade_llm.api.served_model import SamplingDefaults
from blade_llm.sampling.parameters import SamplingParams

DEFAULTS = SamplingDefaults(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.1)
"""Those of Qwen2.5's chat models."""


def _params(**fields: Any) -> SamplingParams:
    request = CompletionRequest(prompt="x", **fields)
    return sampling_params(request, DEFAULTS, search_of(request), max_tokens=8, logprobs=None, vocab_size=100)


def test_a_beam_search_leaves_the_models_defaults_for_draws_alone() -> None:
    params = _params(n=2, use_beam_search=True)
    assert params.beam_width == 2
    assert (params.top_p, params.top_k, params.repetition_penalty) == (1.0, 0, 1.0)


def test_a_draw_takes_them() -> None:
    params = _params()
    assert (params.temperature, params.top_p, params.top_k, params.repetition_penalty) == (0.7, 0.8, 20, 1.1)
