"""Responses that are kept: to go on from, to read and to delete, by the official client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from engine_support.openai_calls import Way, each_way, response
from engine_support.openai_shapes import problems
from engine_support.server_process import ServerProcess, running_server
from openai.types.responses import Response

from blade_protocol import headers

KEY = {"authorization": "Bearer none"}
"""As the client sends it."""
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_output_tokens": 5}


def _get(server: ServerProcess, path: str, more: dict[str, str] | None = None) -> httpx.Response:
    return httpx.get(f"{server.url}/v1/responses/{path}", headers={**KEY, **(more or {})}, timeout=60)


def _final(server: ServerProcess, way: Way, **fields: Any) -> Any:
    return response(server, way, **{**GREEDY, **fields}).raw[-1]


@each_way
def test_a_conversation_goes_on(server: ServerProcess, way: Way) -> None:
    first = _final(server, way, input="hello", instructions="be brief")
    second = _final(server, way, input=[{"role": "user", "content": "more"}], previous_response_id=first.id)
    third = _final(server, way, input="and more", previous_response_id=second.id, instructions="be long")
    assert (first.store, second.previous_response_id, first.previous_response_id) == (True, first.id, None)
    user = [{"role": "user", "content": text} for text in ("hello", "more", "and more")]
    items = [user[0], *first.output, user[1], *second.output, user[2]]
    whole = _final(server, way, input=items, instructions="be long", store=False)
    assert (third.output_text, third.usage.input_tokens) == (whole.output_text, whole.usage.input_tokens)
    assert second.usage.input_tokens == _final(server, way, input=items[:3]).usage.input_tokens  # no instructions


def test_the_tokens_of_a_prompt_are_counted(server: ServerProcess) -> None:
    """Those of the response's own usage, with the conversation before it, its instructions and its tools."""
    tool: Any = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    first = _final(server, Way(False, False), input="hello")
    counts = server.client.responses.input_tokens
    for fields in (
        {"input": "more"},
        {"input": [{"role": "user", "content": "more"}], "instructions": "be brief"},
        {"input": "more", "previous_response_id": first.id, "truncation": "auto"},
    ):
        usage = _final(server, Way(False, False), **fields).usage
        counted = counts.count(model="tiny-chat", **fields)
        assert (counted.object, counted.input_tokens) == ("response.input_tokens", usage.input_tokens), fields
    long = counts.count(model="tiny-chat", input="long " * 400, extra_body={"temperature": 0, "stream": True})
    assert long.input_tokens > 400, "no response could have so many"
    for wrong, param in (({"tools": [{**tool, "name": 3}]}, "tools"), ({"conversation": "c"}, "conversation")):
        with pytest.raises(openai.BadRequestError) as caught:
            counts.count(model="tiny-chat", input="x", **wrong)
        assert caught.value.param == param
    with pytest.raises(openai.NotFoundError):
        counts.count(model="another", input="x")
    assert httpx.get(f"{server.url}/v1/responses/input_tokens").status_code in (404, 405)


@each_way
def test_items_are_found_by_their_id(server: ServerProcess, way: Way) -> None:
    """As Vercel's AI SDK sends what was said before."""
    first = _final(server, way, input="hello")
    user = [{"role": "user", "content": text} for text in ("hello", "more", "and more")]
    named = [{"type": "item_reference", "id": item.id} for item in first.output]
    second = _final(server, way, input=[user[0], *named, user[1]])
    whole = _final(server, way, input=[user[0], *first.output, user[1]], store=False)
    assert (second.output_text, second.usage.input_tokens) == (whole.output_text, whole.usage.input_tokens)
    server.client.responses.delete(first.id)  # the second one has the item itself
    third = _final(server, way, input=[user[2]], previous_response_id=second.id)
    assert third.usage.input_tokens > second.usage.input_tokens
    with pytest.raises(openai.BadRequestError, match=r"input\[1\]: Item with id .* not found") as caught:
        _final(server, way, input=[user[0], *named, user[1]])
    assert (caught.value.param, caught.value.code) == ("input", "item_not_found")


@each_way
def test_it_is_read_and_deleted(server: ServerProcess, way: Way) -> None:
    made = _final(server, way, input="hello", metadata={"a": "b"})
    found = server.client.responses.retrieve(made.id)
    assert found == made.model_copy() or found.model_dump() == made.model_dump()
    assert problems(_get(server, made.id).json(), Response) == []
    assert httpx.head(f"{server.url}/v1/responses/{made.id}", headers=KEY).status_code == 200
    server.client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError, match="not found"):
        server.client.responses.retrieve(made.id)
    with pytest.raises(openai.BadRequestError) as caught:
        server.client.responses.create(model="tiny-chat", input="x", previous_response_id=made.id)
    assert (caught.value.param, caught.value.code) == ("previous_response_id", "previous_response_not_found")


def test_input_items(server: ServerProcess) -> None:
    items: list[Any] = [{"role": "user", "content": f"number {i}"} for i in range(5)]
    made = server.client.responses.create(model="tiny-chat", input=items, max_output_tokens=1)

    def texts(**query: Any) -> list[str]:
        return [item.content[0].text for item in server.client.responses.input_items.list(made.id, **query)]  # type: ignore[union-attr]

    assert texts() == [f"number {i}" for i in (4, 3, 2, 1, 0)]
    assert texts(order="asc", limit=2) == [f"number {i}" for i in range(5)]  # the client turns the pages
    page = _get(server, f"{made.id}/input_items?limit=2&order=asc").json()
    assert (len(page["data"]), page["has_more"], page["last_id"]) == (2, True, page["data"][-1]["id"])
    for query in ("limit=0", "limit=101", "order=up", "after=item_x"):
        assert _get(server, f"{made.id}/input_items?{query}").status_code == 400


def test_what_is_not_to_be_kept_is_not(server: ServerProcess) -> None:
    made = server.client.responses.create(model="tiny-chat", input="hello", max_output_tokens=1, store=False)
    assert made.store is False
    with pytest.raises(openai.NotFoundError):
        server.client.responses.retrieve(made.id)


def test_another_caller_s_response_is_not_found(server: ServerProcess) -> None:
    made = server.client.responses.create(model="tiny-chat", input="hello", max_output_tokens=1)
    for other in ({"authorization": "Bearer other"}, {headers.CALLER: "other"}):
        assert _get(server, made.id, other).status_code == 404
        body = {"input": "x", "previous_response_id": made.id}
        assert httpx.post(f"{server.url}/v1/responses", json=body, headers={**KEY, **other}).status_code == 400
    assert server.client.responses.retrieve(made.id).id == made.id


def test_ids_do_not_follow_from_what_clients_say(server: ServerProcess) -> None:
    def made(**more: str) -> str:
        body = {"input": "hello", "max_output_tokens": 1}
        found = httpx.post(f"{server.url}/v1/responses", json=body, headers={**KEY, **more}, timeout=60)
        return str(found.json()["id"])

    first, second = (made(**{"x-request-id": "mine"}) for _ in range(2))
    assert first != second
    assert "mine" not in first
    tagged = made(**{headers.RESPONSE_TAG: "0123abcd"})
    assert tagged.startswith("resp_0123abcd_")
    assert _get(server, tagged).status_code == 200
    assert ".." not in made(**{headers.RESPONSE_TAG: "../../etc"})


@pytest.mark.parametrize("name", ["resp_" + "0" * 32, "resp_..%2f..%2fetc", "x", "resp_" + "0" * 4000])
def test_ids_that_name_nothing(server: ServerProcess, name: str) -> None:
    assert _get(server, name).status_code == 404


def test_nothing_is_to_be_cancelled(server: ServerProcess) -> None:
    made = server.client.responses.create(model="tiny-chat", input="hello", max_output_tokens=1)
    with pytest.raises(openai.BadRequestError, match="background"):
        server.client.responses.cancel(made.id)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory, text_model: Path) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("several")
    flags = ("--api_server_count", "3", "--response_store_bytes", "60KB", "--response_store_time", "100")
    with running_server(folder, text_model, *flags) as process:
        yield process


def test_any_process_finds_it(several: ServerProcess) -> None:
    """Each request is a connection of its own, which any of the processes may accept."""
    made = several.post("/v1/responses", input="hello", max_output_tokens=1).json()["id"]
    for _ in range(12):  # whatever process accepts the connection
        assert _get(several, made, {"authorization": ""}).status_code == 200
