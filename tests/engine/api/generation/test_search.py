"""How a request's outputs are searched: what a beam search takes from the model's defaults."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from engine_support.tiny_text import write_tokenizer

from blade_llm.api.common.errors import ApiError
from blade_llm.api.common.served_model import ModelSource, SamplingDefaults, load_served_model
from blade_llm.api.generation.requests import CompletionRequest
from blade_llm.api.generation.result import Choice, ChoiceUpdate, TokenEntry, best_choices
from blade_llm.api.generation.sampling import sampling_params
from blade_llm.api.generation.search import search_of
from blade_llm.engine.messages import RequestError, RequestOutput
from blade_llm.sampling.parameters import SamplingParams, TokenLogprobs
from blade_llm.text.errors import TokenizerFilesError
from blade_llm.text.tokenizer import Tokenizer

DEFAULTS = SamplingDefaults(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.1)
"""Those of Qwen2.5's chat models."""


def _params(**fields: Any) -> SamplingParams:
    request = CompletionRequest(prompt="x", **fields)
    return sampling_params(request, DEFAULTS, search_of(request), max_tokens=8, logprobs=None, vocab_size=100)


def test_a_beam_search_ignores_the_models_sampling_defaults() -> None:
    params = _params(n=2, use_beam_search=True)
    assert params.beam_width == 2
    assert (params.top_p, params.top_k, params.repetition_penalty) == (1.0, 0, 1.0)


def test_sampling_takes_them() -> None:
    params = _params()
    assert (params.temperature, params.top_p, params.top_k, params.repetition_penalty) == (0.7, 0.8, 20, 1.1)


@pytest.mark.parametrize("wrong", [{"temperature": 1e39}, {"top_p": 0.0}, {"repetition_penalty": -1.0}, {"top_k": -7}])
def test_a_models_defaults_that_cannot_be_used_are_reported_at_the_start(
    tmp_path: Path, wrong: dict[str, float]
) -> None:
    """Else every request that says nothing would be refused for a field it does not have."""
    folder = write_tokenizer(tmp_path)
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": True, **wrong}))
    ((name, value),) = wrong.items()
    with pytest.raises(
        TokenizerFilesError, match=rf"generation_config\.json: {name} must .*, not {re.escape(str(value))}"
    ):
        load_served_model(ModelSource(folder=str(folder), vocab_size=384))


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", 1e39), ("repetition_penalty", 1e-300), ("length_penalty", 400)]
)
def test_the_schema_has_the_same_bounds(name: str, value: float) -> None:
    with pytest.raises(msgspec.ValidationError, match=name):
        msgspec.convert({"prompt": "x", name: value}, CompletionRequest)


def test_an_output_without_a_token_is_never_the_best() -> None:
    entries = [TokenEntry(5, TokenLogprobs(-9.0), 0, "")]
    said, silent = ChoiceUpdate(0, "well", entries, "stop"), ChoiceUpdate(1, "", [], "stop")
    assert best_choices([silent, said], 1) == [said]
    assert best_choices([silent, said], 2) == [said, silent]


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"best_of": 60, "use_beam_search": True}, "best_of"), ({"n": 9, "use_beam_search": True}, "n"),
     ({"beam_width": 9, "n": 2}, "beam_width")],
)  # fmt: skip
def test_what_the_engine_says_of_a_width_names_the_field_that_gave_it(
    tmp_path: Path, fields: dict[str, Any], field: str
) -> None:
    search = search_of(CompletionRequest(prompt="x", **fields))
    field_names = {"beam_width": search.width_field}
    choice = Choice(0, Tokenizer(write_tokenizer(tmp_path)), [5], SamplingParams(), "prompt", field_names=field_names)
    error = RequestError(field="beam_width", message="is 9, but max_num_seqs is 8")
    with pytest.raises(ApiError) as caught:
        choice.add(RequestOutput(request_id="1", finish_reason="abort", error=error))
    assert caught.value.detail.param == field
    assert caught.value.detail.message == f"{field} is 9, but max_num_seqs is 8"
    with pytest.raises(ApiError) as caught:
        choice.add(
            RequestOutput(request_id="1", finish_reason="abort", error=RequestError(message="the prompt has no tokens"))
        )
    assert caught.value.detail.param == "prompt"
