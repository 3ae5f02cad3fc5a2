"""Tokens a request may use: its own limits, and estimates that are learned."""

from typing import Any

import pytest
from router_support.requests import request

from blade_router.admission.tokens import Estimate, given_tokens, text_bytes
from blade_router.request.models import output_token_limit
from blade_router.request.output_size import token_limit
from blade_router.request.parse import parse_fields
from blade_router.request.usage import Usage


def test_tokens_are_estimated_and_learned() -> None:
    estimate = Estimate()
    client_request = request(model="m", prompt="x" * 4000, max_tokens=50, n=2)
    assert 1000 <= estimate.prompt(client_request) <= 1020
    assert estimate.output(client_request) == 100
    for _ in range(300):
        estimate.learn(client_request, Usage(prompt_tokens=2000, completion_tokens=5))
    assert 1950 <= estimate.prompt(client_request) <= 2010
    without = request(model="m", prompt="x")
    assert estimate.output(without) == 256
    for _ in range(2000):
        estimate.learn(without, Usage(prompt_tokens=1, completion_tokens=10))
    assert 10 <= estimate.output(without) <= 12


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "And then? " * 10, "previous_response_id": "resp_1"},
        {"input": [{"type": "item_reference", "id": f"msg_0123abcd_{'0' * 32}_0"}]},
    ],
    ids=lambda fields: list(fields)[-1],
)
def test_nothing_is_learned_of_prompts_that_engines_keep(fields: dict[str, Any]) -> None:
    """One client's long conversation must not make the prompts of all others seem long."""
    estimate, other = Estimate(), request("/v1/responses", model="m", input="x" * 4000)
    before = estimate.prompt(other)
    kept = request("/v1/responses", model="m", **fields)
    for _ in range(100):
        estimate.learn(kept, Usage(prompt_tokens=50_000, completion_tokens=5))
    assert estimate.prompt(other) == before
    assert estimate.output(other) < 256, "outputs tell as much as others'"


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"prompt": [1, 2, 3]}, 3),
        ({"input": [[1, 2], [3]]}, 3),
        ({"prompt": "[1, 2]"}, None),
        ({"prompt": ["a", "b"]}, None),
        ({"prompt": []}, None),
        ({}, None),
    ],
)
def test_prompts_of_tokens_are_counted(body: dict[str, Any], tokens: int | None) -> None:
    assert given_tokens(request("/v1/other", **body)) == tokens


@pytest.mark.parametrize(
    ("path", "tokens"), [("/v1/completions", 3), ("/v1/embeddings", 1), ("/v1/responses", 1), ("/tokenize", None)]
)
def test_the_prompt_is_the_field_that_counts_for_the_path(path: str, tokens: int | None) -> None:
    client_request = request(path, input=[1], prompt=[1, 2, 3], messages=[])
    assert given_tokens(client_request) == tokens


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        ({}, 1),
        ({"prompt": "a"}, 1),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": []}, 1),
        ({"prompt": ["a", "b", "c"]}, 3),
        ({"prompt": [[1, 2], [3]], "n": 4}, 8),
        ({"beam_width": 5, "n": 2}, 5),
        ({"prompt": 5, "best_of": 3}, 3),
    ],
)
def test_each_prompt_and_beam_has_an_output(body: dict[str, Any], outputs: int) -> None:
    client_request = request("/v1/completions", max_tokens=10, **body)
    assert output_token_limit(client_request.fields, 99) == 10 * outputs


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("1000.0", 1000),
        ("1e3", 1000),
        ('"99999"', 99999),
        ('"1000.0"', 1000),
        ("1.5", None),
        ("1e999", None),
        ('"inf"', None),
        ('"nan"', None),
        ('"many"', None),
        ("true", None),
        ("[5]", None),
        ("null", None),
    ],
)
def test_numbers_are_read_however_they_are_written(written: str, read: int | None) -> None:
    fields = parse_fields(b'{"model": "m", "priority": -100.0, "max_tokens": %b}' % written.encode())
    assert (fields.model, fields.priority, fields.max_tokens) == ("m", -100, read)


def test_of_several_lengths_the_highest_counts() -> None:
    assert token_limit(request(max_completion_tokens=1, max_tokens=50, max_output_tokens=2).fields) == 50


def test_pictures_are_not_text() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    client_request = request(
        model="m", messages=[{"role": "user", "content": [{"type": "text", "text": "look"}, picture]}]
    )
    assert text_bytes(client_request) < 1000
    before = Estimate().prompt(client_request)
    estimate = Estimate()
    estimate.learn(client_request, Usage(prompt_tokens=5000, completion_tokens=1))
    assert estimate.prompt(client_request) == before, "nothing is learned from what is no text"


@pytest.mark.parametrize("before", ["base64,", "data:text/plain;base64,", '"url":"data:image/png;base64,'])
def test_text_that_resembles_a_picture_is_text(before: str) -> None:
    client_request = request(model="m", messages=[{"role": "user", "content": before + "A" * 100_000}])
    assert text_bytes(client_request) == len(client_request.body)
