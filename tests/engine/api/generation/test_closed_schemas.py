"""Over HTTP: objects take no keys that they do not list, unless opened; what outputs are not held to is in a header."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from engine_support.server_process import ServerProcess, running_server
from engine_support.tiny_text import write_model

INNER = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}
SCHEMA = {"type": "object", "properties": {"o": INNER}, "required": ["o"]}


@pytest.fixture(scope="module", params=[False, True], ids=["closed", "open"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("schemas")
    flags = ("--open_schemas", "true") if request.param else ()
    with running_server(folder / "server", write_model(folder / "tiny-chat"), *flags, engine="real") as process:
        yield process


def _texts(server: ServerProcess, **fields: Any) -> set[str]:
    """What seven outputs begin with."""
    response = server.post("/v1/completions", prompt="hello", max_tokens=40, temperature=2, n=7, seed=3, **fields)
    assert response.status_code == 200, response.text
    return {choice["text"] for choice in response.json()["choices"]}


def test_objects_are_closed_unless_opened(server: ServerProcess, request: pytest.FixtureRequest) -> None:
    closed = '{"o": {"a": 1}}'
    fields: list[dict[str, Any]] = [
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"structured_outputs": {"json": SCHEMA}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
    ]
    opened = request.node.callspec.id == "open"
    for each in fields:
        assert (_texts(server, **each) == {closed}) is not opened
    assert _texts(server, guided_json={**SCHEMA, "x-blade-closed": True}) == {closed}
    assert _texts(server, guided_json={**SCHEMA, "x-blade-closed": False}) != {closed}
    assert _texts(server, structured_outputs={"json": SCHEMA, "disable_additional_properties": True}) == {closed}


def test_what_outputs_are_not_held_to_is_in_a_header(server: ServerProcess) -> None:
    few = {"type": "array", "uniqueItems": True, "items": {"enum": ["x", "y"]}}
    many = {**few, "items": {"type": "string"}}
    for schema, expected in (
        ({"properties": {"größe, a": many, "few": few}}, "#/properties/gr%C3%B6%C3%9Fe%2C%20a/uniqueItems"),
        ({"properties": {"few": few}}, None),
    ):
        for _ in range(2):  # the second time from the cache
            for stream in (False, True):
                body = {
                    "prompt": "hello",
                    "max_tokens": 3,
                    "guided_json": {"type": "object", **schema},
                    "stream": stream,
                }
                response = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
                assert response.status_code == 200, response.text
                assert response.headers.get("x-blade-unheld") == expected
