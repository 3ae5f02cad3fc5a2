"""Fields that nobody knows, at every endpoint of a real server: listed in a header and counted, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine_support.exposition import read_exposition
from engine_support.server_process import ServerProcess, running_server

from blade_protocol import headers, metrics

HELLO = [{"role": "user", "content": "x"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 1},
    "/v1/completions": {"prompt": "x", "max_tokens": 1},
    "/v1/responses": {"input": "x", "max_output_tokens": 1},
    "/v1/embeddings": {"input": "x"},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [5]},
}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory, text_model: Path) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("strict")
    flags = ("--strict_fields", "--api_server_count", "2")
    with running_server(folder, text_model, *flags) as server:
        yield server


@pytest.mark.parametrize("path", BODIES)
def test_every_endpoint_lists_them(server: ServerProcess, path: str) -> None:
    response = server.post(path, **BODIES[path], num_ctx=5, temprature=1)
    assert response.status_code == 200, response.text
    assert response.headers[headers.IGNORED] == "num_ctx, temprature"
    assert headers.IGNORED not in server.post(path, **BODIES[path]).headers


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_so_do_streams(server: ServerProcess, path: str) -> None:
    response = server.post(path, **BODIES[path], num_ctx=5, stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers[headers.IGNORED] == "num_ctx"


def test_names_are_no_way_into_the_head(server: ServerProcess) -> None:
    name = "a\r\nset-cookie: b=c, \u4e2d"
    response = server.post("/v1/completions", prompt="x", max_tokens=1, **{name: 1})
    assert response.headers[headers.IGNORED] == "a??set-cookie:?b?c???"
    assert "set-cookie" not in response.headers


def test_parts_of_messages(server: ServerProcess) -> None:
    part = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
    messages = [{"role": "user", "content": [part], "id": "m1"}, {"role": "assistant", "content": "y", "id": "m2"}]
    for path in ("/v1/chat/completions", "/tokenize"):
        response = server.post(path, messages=messages)
        assert response.headers[headers.IGNORED] == "messages[].id, messages[].content[].cache_control"


def test_a_key_of_messages_that_the_template_reads_is_none(server: ServerProcess) -> None:
    template = "{% for message in messages %}{{ message.mood }}: {{ message.content }}{% endfor %}"
    messages = [{"role": "user", "content": "x", "mood": "glad", "id": 5}]
    response = server.post("/v1/chat/completions", messages=messages, chat_template=template, max_tokens=1)
    assert response.headers[headers.IGNORED] == "messages[].id"


def test_they_are_counted(server: ServerProcess) -> None:
    def counted() -> float:
        return read_exposition(httpx.get(f"{server.url}/metrics").text)[f"{metrics.ENGINE_IGNORED_FIELDS}_total"]

    before = counted()
    server.post("/v1/completions", prompt="x", max_tokens=1, num_ctx=5, num_gpu=1)
    assert counted() == before + 2


@pytest.mark.parametrize("path", BODIES)
def test_a_strict_server_refuses_them(strict: ServerProcess, path: str) -> None:
    for _ in range(4):  # whichever process it reaches
        response = strict.post(path, **BODIES[path], modle="x")
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["param"], error["code"]) == ("modle", "unknown_field")
        assert "did you mean 'model'?" in error["message"]
    assert strict.post(path, **BODIES[path]).status_code == 200


def test_the_document_of_a_strict_server_says_so(strict: ServerProcess) -> None:
    schemas = httpx.get(f"{strict.url}/openapi.json").json()["components"]["schemas"]
    assert schemas["CompletionRequest"]["additionalProperties"] is False


@pytest.mark.parametrize(
    ("fields", "param", "hint"),
    [
        ({"stream": True, "stream_options": {"include_usge": True}}, "stream_options", "'include_usage'"),
        ({"messages": [{"role": "user", "content": "x", "nmae": "y"}]}, "messages", "'name'"),
        ({"temprature": 1}, "temprature", "'temperature'"),
    ],
)
def test_a_strict_server_looks_inside(strict: ServerProcess, fields: dict[str, Any], param: str, hint: str) -> None:
    response = strict.post("/v1/chat/completions", **{"messages": HELLO, **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert hint in response.json()["error"]["message"]
