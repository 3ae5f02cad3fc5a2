"""Rewriting fields of a body: the one on the top level changes, and not a byte beside it."""

from __future__ import annotations

import json

import pytest

from blade_protocol.routing import ModelConfig
from blade_router.http.errors import Refused
from blade_router.request.models import Target, prepare
from blade_router.request.parse import parse_fields
from blade_router.request.request import ClientRequest

ALIAS = Target("", ModelConfig(name="m", aliases=("a",)))


def rewritten(body: bytes) -> bytes:
    request = ClientRequest("POST", "/v1/chat/completions", parse_fields(body), body, b"r")
    prepare(request, ALIAS, None)
    assert request.fields.model == "m"
    return request.body


@pytest.mark.parametrize(
    ("body", "new"),
    [
        (b'{"model":"a"}', b'{"model":"m"}'),
        (b' {\n "x" : [ 1 , 2 ],\t"model" : "a" } ', b' {\n "x" : [ 1 , 2 ],\t"model" : "m" } '),
        (b'{"x":{"model":"a"},"model":"a"}', b'{"x":{"model":"a"},"model":"m"}'),
        (b'{"model":"a","x":[{"model":"a"}]}', b'{"model":"m","x":[{"model":"a"}]}'),
        (b'{"model":"b","model":"a"}', b'{"model":"b","model":"m"}'),
        (b'{"model":"a","model":"a"}', b'{"model":"a","model":"m"}'),
        (b'{"x":"\\"model\\":\\"a\\"","model":"a"}', b'{"x":"\\"model\\":\\"a\\"","model":"m"}'),
        (
            b'{"x":[' + b'{"model":"a"},' * 50 + b'1],"model":"a"}',
            b'{"x":[' + b'{"model":"a"},' * 50 + b'1],"model":"m"}',
        ),
        (b'{"model":"\\u0061","x":1.50}', b'{"model":"m","x":1.50}'),
    ],
)
def test_only_the_field_changes(body: bytes, new: bytes) -> None:
    assert rewritten(body) == new
    assert json.loads(new)["model"] == "m"


@pytest.mark.parametrize(
    "body",
    [
        b'{"mod\\u0065l":"a"}',
        b'{"mod\\u0065l":"a","x":{"model":"a"}}',
        b'{"x":[' + b'{"model":"a"},' * 5000 + b'1],"model":"a"}',
    ],
)
def test_a_field_that_cannot_be_found_for_certain_is_refused(body: bytes) -> None:
    with pytest.raises(Refused, match="write its name without escapes") as refused:
        rewritten(body)
    assert (refused.value.status, refused.value.code) == (400, "ambiguous_field")


def test_a_number_is_not_taken_for_the_start_of_another() -> None:
    body = b'{"x":{"priority":50},"y":[{"priority":5.5}],"priority":5}'
    request = ClientRequest("POST", "/v1/completions", parse_fields(body), body, b"r")
    prepare(request, Target(""), 7)
    assert request.body == b'{"x":{"priority":50},"y":[{"priority":5.5}],"priority":7}'
