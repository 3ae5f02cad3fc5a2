"""``/v1/embeddings``, ``/tokenize`` and ``/detokenize`` on a real server process with a fake engine."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import struct
from typing import Any

import httpx
import pytest
from engine_support.fake_core import HIDDEN, fake_embedding
from engine_support.server_process import ServerProcess

from blade_llm.api.embeddings import EmbeddingRequest, _respond
from blade_llm.engine.messages import RequestOutput

PATH = "/v1/embeddings"
HELLO = [{"role": "user", "content": "hello"}]


def _embed(server: ServerProcess, given: Any, **fields: Any) -> list[list[float]]:
    response = server.post(PATH, input=given, **fields)
    assert response.status_code == 200, response.text
    return [entry["embedding"] for entry in response.json()["data"]]


def _unit(vector: list[float]) -> list[float]:
    length = math.sqrt(sum(value * value for value in vector))
    return [value / length for value in vector]


def test_through_the_official_client(server: ServerProcess) -> None:
    """The client requests base64 and decodes it."""
    response = server.client.embeddings.create(model="tiny-chat", input=["hello", "world"])
    assert [entry.index for entry in response.data] == [0, 1]
    assert len(response.data[0].embedding) == HIDDEN
    assert sum(value * value for value in response.data[0].embedding) == pytest.approx(1.0)
    assert response.usage.prompt_tokens == response.usage.total_tokens > 0


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_pooled_states(server: ServerProcess, pooling: str) -> None:
    ids = [[40, 41], [50, 51, 53]]
    raw = _embed(server, ids, pooling=pooling, normalize=False)
    assert raw == [fake_embedding(each, pooling) for each in ids]
    assert _embed(server, ids[0], pooling=pooling)[0] == pytest.approx(_unit(raw[0]), rel=1e-6)
    assert _embed(server, ids[0], pooling=pooling, dimensions=3)[0] == pytest.approx(_unit(raw[0][:3]), rel=1e-6)
    coded = _embed(server, ids[1], pooling=pooling, encoding_format="base64")[0]
    assert isinstance(coded, str)
    assert struct.unpack(f"<{HIDDEN}f", base64.b64decode(coded)) == pytest.approx(_unit(raw[1]), rel=1e-6)


def test_many_inputs_in_order(server: ServerProcess) -> None:
    ids = [[40 + number % 50] for number in range(300)]
    assert _embed(server, ids, normalize=False) == [fake_embedding(each, "last") for each in ids]
    cut = server.post(PATH, input=[40] * 3000, truncate_prompt_tokens=-1).json()
    assert cut["usage"]["prompt_tokens"] == 2048


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": ["x"] * 2049}, "input"),
        ({"input": [40] * 2049}, "input"),
        ({"input": [384]}, "input"),
        ({"input": {"a": 1}}, "input"),
        ({}, "input"),
        ({"input": "x", "dimensions": HIDDEN + 1}, "dimensions"),
        ({"input": [40] * 2049, "dimensions": HIDDEN + 1}, "dimensions"),
        ({"input": "x", "dimensions": 0}, "dimensions"),
        ({"input": "x", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "x", "pooling": "max"}, "pooling"),
    ],
)
def test_bad_inputs(server: ServerProcess, fields: dict[str, Any], param: str) -> None:
    response = server.post(PATH, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


class _Together:
    """A generation whose outputs all come at once."""

    async def get(self) -> list[tuple[int, RequestOutput]]:
        data = struct.pack("<2f", 0.5, 0.25)
        return [
            (index, RequestOutput(request_id=str(index), embedding=data, finish_reason="stop")) for index in range(50)
        ]


@pytest.mark.parametrize("encoding", ["float", "base64"])
async def test_others_get_their_turn_between_many_vectors(encoding: Any) -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    generation: Any = _Together()
    fields = EmbeddingRequest(input="x", normalize=False, encoding_format=encoding)
    response = await _respond(generation, fields, "m", 50, 50)
    task.cancel()
    assert turns >= 50
    data = json.loads(bytes(response.body))["data"]
    expected = [0.5, 0.25] if encoding == "float" else base64.b64encode(struct.pack("<2f", 0.5, 0.25)).decode()
    assert [entry["embedding"] for entry in data] == [expected] * 50


def test_tokenize_and_back(server: ServerProcess) -> None:
    text = "hello caf\u00e9 <|im_end|>"
    found = server.post("/tokenize", prompt=text).json()
    assert found["count"] == len(found["tokens"])
    assert found["max_model_len"] == 2048
    assert found["token_strs"] is None
    assert server.post("/detokenize", tokens=found["tokens"]).json() == {"prompt": text}
    spelled = server.post("/tokenize", prompt=text, return_token_strs=True).json()["token_strs"]
    assert spelled[-1] == "<|im_end|>"
    assert server.post("/detokenize", tokens=[]).json() == {"prompt": ""}


def test_tokenize_messages(server: ServerProcess) -> None:
    found = server.post("/tokenize", messages=HELLO).json()
    response = server.post("/v1/chat/completions", messages=HELLO, max_tokens=1).json()
    assert found["count"] == response["usage"]["prompt_tokens"]
    shorter = server.post("/tokenize", messages=HELLO, add_generation_prompt=False).json()
    assert found["tokens"][: shorter["count"]] == shorter["tokens"]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": HELLO}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": 5}]}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [384]}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
    ],
)
def test_bad_texts(server: ServerProcess, path: str, fields: dict[str, Any], param: str) -> None:
    response = server.post(path, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert httpx.get(server.url + path).status_code == 405
