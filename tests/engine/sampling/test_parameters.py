"""What a request may set for sampling, and the field that is named where it may not."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import msgspec
import pytest

from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.sampling.parameters import SamplingParams

JSON = GrammarSpec("json", "{}")
BEAMS: dict[str, Any] = {"beam_width": 4}


def problem(**fields: Any) -> tuple[str, str] | None:
    return SamplingParams(**fields).problem()


@pytest.mark.parametrize(
    "field",
    [
        "temperature",
        "top_p",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "length_penalty",
    ],
)
@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_what_is_not_a_number_is_refused_by_name(field: str, value: float) -> None:
    found = problem(**{field: value})
    assert found is not None
    assert found[0] == field


@pytest.mark.parametrize("value", [nan, inf, -inf, 100.001, -101.0])
def test_a_bias_is_finite_and_at_most_100(value: float) -> None:
    assert problem(logit_bias={5: 1.0, 7: value}) == ("logit_bias", "takes values between -100 and 100")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"temperature": 1e39}, "temperature"),
        ({"temperature": 1.1e6}, "temperature"),
        ({"repetition_penalty": 1e-300}, "repetition_penalty"),
        ({"repetition_penalty": 1e39}, "repetition_penalty"),
        ({**BEAMS, "length_penalty": 400.0}, "length_penalty"),
        ({**BEAMS, "length_penalty": -10.1}, "length_penalty"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"logit_bias": {-1: 0.0}}, "logit_bias"),
        ({"seed": 2**64}, "seed"),
        ({"stop": ("",)}, "stop"),
        ({"stop": ("a",) * 17}, "stop"),
        ({"beam_width": 1}, "beam_width"),
        ({"beam_width": 65}, "beam_width"),
        ({"beam_width": -2}, "beam_width"),
        ({"grammar_spec": JSON, "ignore_eos": True}, "ignore_eos"),
        ({**BEAMS, "temperature": 0.7}, "temperature"),
        ({**BEAMS, "top_p": 0.9}, "top_p"),
        ({**BEAMS, "top_k": 5}, "top_k"),
        ({**BEAMS, "min_p": 0.1}, "min_p"),
        ({**BEAMS, "repetition_penalty": 1.1}, "repetition_penalty"),
        ({**BEAMS, "presence_penalty": 0.1}, "presence_penalty"),
        ({**BEAMS, "frequency_penalty": 0.1}, "frequency_penalty"),
        ({**BEAMS, "logit_bias": {3: 1.0}}, "logit_bias"),
        ({**BEAMS, "grammar_spec": JSON}, "beam_width"),
    ],
    ids=str,
)
def test_the_field_that_is_wrong_is_named(fields: dict[str, Any], field: str) -> None:
    found = problem(**fields)
    assert found is not None
    assert found[0] == field
    assert found[1]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.0, "top_k": -1, "seed": 2**64 - 1},
        {"temperature": 1e-9, "top_p": 1e-9, "min_p": 1.0, "repetition_penalty": 50.0},
        {"temperature": 1e-300, "top_p": 1e-300, "min_p": 1e-300, "repetition_penalty": 1e-6, "length_penalty": 10.0},
        {"temperature": 1e6, "repetition_penalty": 1e6, "presence_penalty": 1e-300, "length_penalty": -10.0},
        {"logit_bias": {0: -100.0, 151_935: 100.0}, "prompt_logprobs": 0, "logprobs": 20},
        {"grammar_spec": JSON, "min_tokens": 3, "logit_bias": {1: 1.0}, "seed": 3},
        {**BEAMS, "temperature": 1.0, "top_k": -1, "min_tokens": 3, "logprobs": 2, "prompt_logprobs": 1},
        {"beam_width": 64, "temperature": 0.0, "length_penalty": -0.5, "early_stopping": True},
    ],
    ids=str,
)
def test_what_is_possible_passes_and_survives_the_wire(fields: dict[str, Any]) -> None:
    assert problem(**fields) is None
    params = SamplingParams(**fields)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params
