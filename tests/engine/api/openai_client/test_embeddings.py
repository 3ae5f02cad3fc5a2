"""Embeddings and models through the official client, sync and async."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import openai
import pytest
from engine_support.fake_core import HIDDEN
from engine_support.openai_calls import async_client, client
from engine_support.openai_shapes import problems
from engine_support.server_process import ServerProcess
from openai.types import CreateEmbeddingResponse

BOTH = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


def _create(server: ServerProcess, asynchronous: bool, **fields: Any) -> CreateEmbeddingResponse:
    given = {"model": "tiny-chat", **fields}
    if not asynchronous:
        return client(server.url).embeddings.create(**given)

    async def send() -> CreateEmbeddingResponse:
        async with async_client(server.url) as each:
            return await each.embeddings.create(**given)

    return asyncio.run(send())


@BOTH
@pytest.mark.parametrize(
    ("given", "count"),
    [("hello", 1), (["hello", "world", "hello"], 3), ([40, 41, 42], 1), ([[40, 41], [42]], 2)],
    ids=str,
)
def test_inputs_of_every_form(server: ServerProcess, asynchronous: bool, given: Any, count: int) -> None:
    found = _create(server, asynchronous, input=given)
    assert [one.index for one in found.data] == list(range(count))
    for one in found.data:
        assert len(one.embedding) == HIDDEN
        assert math.isclose(sum(value * value for value in one.embedding), 1, rel_tol=1e-5)
    assert found.usage.prompt_tokens == found.usage.total_tokens > 0


@BOTH
def test_both_encodings_say_the_same(server: ServerProcess, asynchronous: bool) -> None:
    """The client requests base64 by itself and decodes it."""
    numbers = _create(server, asynchronous, input="hello", encoding_format="float").data[0].embedding
    decoded = _create(server, asynchronous, input="hello").data[0].embedding
    assert decoded == pytest.approx(numbers, rel=1e-6)
    raw: Any = _create(server, asynchronous, input="hello", encoding_format="base64").data[0].embedding
    assert isinstance(raw, str)


@BOTH
def test_dimensions(server: ServerProcess, asynchronous: bool) -> None:
    found = _create(server, asynchronous, input="hello", dimensions=3, user="u").data[0].embedding
    assert len(found) == 3
    assert math.isclose(sum(value * value for value in found), 1, rel_tol=1e-5)


@BOTH
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("input", value) for value in ([], "", [""], [10**6])),
        *(("dimensions", value) for value in (0, 1000)),
        ("encoding_format", "int8"),
        ("model", "gpt-9"),
    ],
    ids=str,
)
def test_a_bad_field_is_named(server: ServerProcess, asynchronous: bool, name: str, value: Any) -> None:
    with pytest.raises((openai.BadRequestError, openai.NotFoundError)) as caught:
        _create(server, asynchronous, **{"input": "hello", name: value})
    assert caught.value.param == name


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_shape(server: ServerProcess, encoding: str) -> None:
    body = server.post("/v1/embeddings", input=["hello", "world"], encoding_format=encoding).json()
    found = problems(body, CreateEmbeddingResponse)
    assert [one for one in found if encoding != "base64" or "in place of a list" not in one] == []


@BOTH
def test_models(server: ServerProcess, asynchronous: bool) -> None:
    async def listed() -> list[str]:
        async with async_client(server.url) as each:
            names = [model.id async for model in each.models.list()]
            assert [(await each.models.retrieve(name)).id for name in names] == names
            return names

    if asynchronous:
        names = asyncio.run(listed())
    else:
        names = [model.id for model in client(server.url).models.list()]
        assert [client(server.url).models.retrieve(name).id for name in names] == names
    assert names == ["tiny-chat"]
    with pytest.raises(openai.NotFoundError):
        client(server.url).models.retrieve("gpt-9")
