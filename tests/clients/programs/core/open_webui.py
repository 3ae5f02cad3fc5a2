"""The requests Open WebUI sends to a connection of type OpenAI, as its ``routers/openai.py``, ``routers/tasks.py`` and
``utils/middleware.py`` build them, and what it reads of the answers. Its own server is not run: only the wire is ours.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import httpx
from case import API_KEY, BASE_URL, MODEL, Client

CLIENT = Client("Open WebUI (its requests)", "httpx")
USER = {"Name": quote("Ada Lovelacé", safe=" "), "Id": "7f6c", "Email": "ada@example.org", "Role": "admin"}
HEADERS = {
    "Content-Type": "application/json",
    "Authorization": f"Bearer {API_KEY}",
    **{f"X-OpenWebUI-User-{name}": value for name, value in USER.items()},
}
"""With ENABLE_FORWARD_USER_INFO_HEADERS; those of a chat's have its ids, too."""
CHAT = {**HEADERS, "X-OpenWebUI-Chat-Id": "c-1", "X-OpenWebUI-Message-Id": "m-1"}
PARAMETERS: dict[str, Any] = {
    "temperature": 0.0,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.0,
    "seed": 42,
    "stop": ["</s>"],
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "max_tokens": 60,
    "logit_bias": {"100": -1},
    "num_ctx": 2048,
    "num_batch": 512,
    "num_keep": 24,
    "num_thread": 2,
    "num_gpu": 0,
    "mirostat": 0,
    "mirostat_eta": 0.1,
    "mirostat_tau": 5.0,
    "repeat_last_n": 64,
    "tfs_z": 1.0,
    "use_mmap": True,
    "use_mlock": False,
    "keep_alive": "5m",
    "think": False,
}
"""Advanced parameters of a model: those of Ollama's, too, are merged into the body unless they are unset."""
TOOL = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look a built-in function up in Python's documentation.",
        "parameters": {
            "type": "object",
            "properties": {"name": {"type": "string", "description": "The name.", "maxLength": 20}},
            "required": ["name"],
        },
    },
}
HISTORY = "<chat_history>\nUSER: What does len do?\nASSISTANT: It returns the number of items.\n</chat_history>"
TASKS = {
    "title": 'Give this chat a title of 3 to 5 words with an emoji. JSON format: { "title": "your concise title" }',
    "tags": 'Name 1 to 3 broad tags of this chat. JSON format: { "tags": ["tag1", "tag2"] }',
    "follow_ups": 'Suggest 3 to 5 questions to ask next. JSON format: { "follow_ups": ["Question 1?", "Question 2?"] }',
    "queries": 'Write search queries where they help. JSON format: { "queries": ["query1", "query2"] }',
}
SYSTEM = {"role": "system", "content": "Answer about Python."}
QUESTION = {"role": "user", "content": "What does len do?"}


@asynccontextmanager
async def _server() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=300) as server:
        yield server


async def _events(server: httpx.AsyncClient, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """The stream, read as its middleware does: lines that begin with ``data:``, and a last one that is no JSON."""
    sent = {"stream": True, "model": MODEL, "stream_options": {"include_usage": True}, **body}
    async with server.stream("POST", f"{BASE_URL}/chat/completions", headers=CHAT, content=json.dumps(sent)) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert "text/event-stream" in answer.headers["content-type"]
        async for line in answer.aiter_lines():
            if not line.startswith("data:"):
                continue
            data = line.removeprefix("data:").strip()
            if data == "[DONE]":
                return
            yield json.loads(data)
    raise AssertionError("the stream ended without [DONE]")


async def _streamed(server: httpx.AsyncClient, body: dict[str, Any]) -> tuple[str, list[Any], dict[str, Any]]:
    """Text, calls by their ``index``, and usage."""
    text, usage, calls = "", {}, []
    async for event in _events(server, body):
        usage = event.get("usage") or usage
        for choice in event.get("choices", []):
            text += choice["delta"].get("content") or ""
            for part in choice["delta"].get("tool_calls") or []:
                known = next((call for call in calls if call["index"] == part["index"]), None)
                if known is None:
                    part["function"].setdefault("name", "")
                    part["function"].setdefault("arguments", "")
                    calls.append(part)
                else:
                    known["function"]["name"] += part["function"].get("name") or ""
                    known["function"]["arguments"] += part["function"].get("arguments") or ""
    return text, calls, usage


async def _asked(server: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    answer = await server.post(f"{BASE_URL}/chat/completions", headers=HEADERS, content=json.dumps(body))
    assert answer.status_code == 200, answer.text
    return answer.json()


@CLIENT.case("connection and models")
async def models() -> str:
    """The same request checks a new connection and fills the list of models."""
    async with _server() as server:
        answer = await server.get(f"{BASE_URL}/models", headers=HEADERS)
    assert answer.status_code == 200, answer.text
    listed = [model["id"] for model in answer.json()["data"]]
    assert MODEL in listed
    assert not any(model.get("name", "") is None for model in answer.json()["data"])
    return " ".join(listed)


@CLIENT.case("stream")
async def stream() -> str:
    async with _server() as server:
        text, _, usage = await _streamed(server, {"messages": [SYSTEM, QUESTION], **PARAMETERS})
    assert "number of items" in text
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    return text


@CLIENT.case("content in parts")
async def parts() -> str:
    """A message with a file beside it, once the file's text went into the prompt; and one that is to be continued."""
    content = [{"type": "text", "text": QUESTION["content"]}]
    async with _server() as server:
        text, _, _ = await _streamed(server, {"messages": [{"role": "user", "content": content}], "temperature": 0})
        begun = {"role": "assistant", "content": "The built-in len() returns"}
        more, _, _ = await _streamed(server, {"messages": [QUESTION, begun], "max_tokens": 20})
    assert "number of items" in text
    return f"{text} … {more}"


@CLIENT.case("tools")
async def tools() -> str:
    """Native function calling: the calls go back with the index they were streamed with, each with its result."""
    body = {"messages": [SYSTEM, QUESTION], "tools": [TOOL], **PARAMETERS, "max_tokens": 120}
    forced = {"tool_choice": "required"}  # a custom parameter of the model
    async with _server() as server:
        _, calls, _ = await _streamed(server, {**body, **forced})
        assert calls
        for call in calls:
            assert set(json.loads(call["function"]["arguments"])) == {"name"}
        asked = {"role": "assistant", "content": "", "tool_calls": calls}
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "number of items"} for call in calls]
        _, _, usage = await _streamed(server, {**body, "messages": [*body["messages"], asked, *results]})
    assert usage["completion_tokens"] > 0
    return calls[0]["function"]["arguments"]


@CLIENT.case("title, tags, follow-ups, queries")
async def tasks() -> str:
    """Its prompts in short. It takes what stands between braces and does without where that is no JSON."""
    async with _server() as server:
        for prompt in TASKS.values():
            message = {"role": "user", "content": f"### Task:\n{prompt}\n### Chat History:\n{HISTORY}"}
            body = {"model": MODEL, "messages": [message], "stream": False, "max_tokens": 1000}
            answer = await _asked(server, body)
            assert isinstance(answer["choices"][0]["message"]["content"], str)
            assert answer["usage"]["prompt_tokens"] > 20
    return f"{len(TASKS)} tasks"


@CLIENT.case("structured")
async def title() -> str:
    """A task model whose parameters have a ``response_format``, so that a title is always one."""
    schema = {
        "type": "object",
        "properties": {"title": {"type": "string", "maxLength": 30}},
        "required": ["title"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "title", "strict": True, "schema": schema}}
    message = {"role": "user", "content": f"### Task:\n{TASKS['title']}\n### Chat History:\n{HISTORY}"}
    body = {"messages": [message], "stream": False, "max_tokens": 1000, "response_format": form}
    async with _server() as server:
        answer = await _asked(server, {"model": MODEL, **body})
    content = answer["choices"][0]["message"]["content"]
    found = json.loads(content[content.find("{") : content.rfind("}") + 1])
    assert set(found) == {"title"}
    return content


@CLIENT.case("stream, stopped by the user")
async def stopped() -> str:
    """Its task is cancelled and the connection closed in the middle. None of the requests goes on: another is answered
    at once, however many were stopped."""

    async def stop(server: httpx.AsyncClient) -> None:
        async for event in _events(server, {"messages": [QUESTION], "max_tokens": 3000, "ignore_eos": True}):
            if event["choices"][0]["delta"].get("content"):
                return

    async with _server() as server:
        await asyncio.gather(*[stop(server) for _ in range(12)])
        text, _, _ = await _streamed(server, {"messages": [QUESTION], "temperature": 0, "max_tokens": 60})
    assert "number of items" in text
    return text


@CLIENT.case("responses")
async def responses() -> str:
    """A connection of API type Responses: messages become items, and what is stored of an answer goes back as items."""
    text = {"type": "input_text", "text": QUESTION["content"]}
    asked = {"type": "message", "role": "user", "content": [text]}
    body = {"model": MODEL, "stream": True, "instructions": SYSTEM["content"], "max_output_tokens": 120}
    body |= {name: PARAMETERS[name] for name in ("temperature", "top_p", "top_k", "min_p", "seed", "num_ctx", "think")}
    body |= {"tools": [{"type": "function", **TOOL["function"]}], "tool_choice": "required"}
    async with _server() as server:
        (call, *_) = [item for item in await _items(server, {**body, "input": [asked]}) if "call_id" in item]
        thought = {"type": "reasoning", "id": "r_1", "summary": None, "status": "completed", "duration": 1}
        thought |= {"content": [{"type": "output_text", "text": "I look it up."}], "started_at": 1.5, "attributes": {}}
        call = {name: call[name] for name in ("type", "call_id", "name", "arguments", "id")}
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "number of items"}
        body |= {"input": [asked, thought, call, result], "tool_choice": "none"}
        items = await _items(server, body)
    assert [item["type"] for item in items][-1] == "message"
    return call["arguments"]


async def _items(server: httpx.AsyncClient, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The output items of a response's stream, as they are when each is done."""
    items, kinds = [], []
    async with server.stream("POST", f"{BASE_URL}/responses", headers=CHAT, content=json.dumps(body)) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line.startswith("data:"):
                event = json.loads(line.removeprefix("data:"))
                kinds.append(event["type"])
                items += [event["item"]] if event["type"] == "response.output_item.done" else []
    assert kinds[0] == "response.created"
    assert kinds[-1] in ("response.completed", "response.incomplete")
    return items


@CLIENT.case("embeddings")
async def embeddings() -> str:
    body = {"input": ["len returns the number of items", "sorted returns a list"], "model": MODEL}
    async with _server() as server:
        answer = await server.post(f"{BASE_URL}/embeddings", headers=HEADERS, json=body)
    assert answer.status_code == 200, answer.text
    vectors = [item["embedding"] for item in answer.json()["data"]]
    assert len({len(vector) for vector in vectors}) == 1
    return f"{len(vectors)} of {len(vectors[0])}"


@CLIENT.case("errors")
async def errors() -> str:
    """What is shown to the user is ``error.message``, of a stream, too; and it is JSON, not an event stream."""
    body = {"model": "no-such-model", "messages": [QUESTION], "stream": True}
    async with _server() as server:
        answer = await server.post(f"{BASE_URL}/chat/completions", headers=CHAT, json=body)
    assert answer.status_code == 404
    assert "application/json" in answer.headers["content-type"]
    assert "no-such-model" in answer.json()["error"]["message"]
    return answer.json()["error"]["message"]


CLIENT.main()
