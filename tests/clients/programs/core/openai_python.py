"""OpenAI's Python client, blocking and asynchronous: ``base_url`` is the server's."""

from __future__ import annotations

import json
from typing import Literal

import openai
from case import API_KEY, BASE_URL, MODEL, TURN, Client
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field

CLIENT = Client("OpenAI (Python)", "openai")
openai_client = OpenAI(base_url=BASE_URL, api_key=API_KEY)
asynchronous = AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY)
QUESTION = "What does len do?"
MESSAGES = [{"role": "user", "content": QUESTION}]


class Lookup(BaseModel):
    """Look a built-in function up in Python's documentation."""

    name: str = Field(max_length=20)
    section: Literal["functions", "types"]


class Fact(BaseModel):
    name: str = Field(max_length=20)
    kind: Literal["function", "statement"]
    useful: bool


TOOL = openai.pydantic_function_tool(Lookup, name="lookup")


@CLIENT.case("models")
def models() -> str:
    listed = [model.id for model in openai_client.models.list()]
    assert MODEL in listed, listed
    assert openai_client.models.retrieve(MODEL).id == MODEL
    return " ".join(listed)


@CLIENT.case("basic")
def basic() -> str:
    answer = openai_client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0, max_tokens=60)
    choice = answer.choices[0]
    assert "number of items" in choice.message.content
    assert choice.finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    return choice.message.content


@CLIENT.case("basic, async")
async def basic_async() -> str:
    async with asynchronous as api:
        answer = await api.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0, max_tokens=60)
    assert "number of items" in answer.choices[0].message.content
    return answer.choices[0].message.content


@CLIENT.case("stream")
def stream() -> str:
    sent = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_completion_tokens": 60}
    whole = openai_client.chat.completions.create(**sent)
    chunks = list(openai_client.chat.completions.create(**sent, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.usage for chunk in chunks if chunk.usage] == [chunks[-1].usage]
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    return f"{len(chunks)} chunks: {text}"


@CLIENT.case("stream, async, helper")
async def stream_helper() -> str:
    api = AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY)
    sent = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 60}
    async with api, api.chat.completions.stream(**sent) as events:
        kinds = [event.type async for event in events]
        completion = await events.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= set(kinds)
    assert "number of items" in completion.choices[0].message.content
    return f"{len(kinds)} events"


@CLIENT.case("stream, abandoned")
def abandoned() -> str:
    with openai_client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=3000, stream=True) as chunks:
        first = next(iter(chunks))
    assert first.choices[0].delta.role == "assistant"
    return basic()  # the connection's end left nothing behind


@CLIENT.case("several, logprobs")
def several() -> str:
    answer = openai_client.chat.completions.create(
        model=MODEL, messages=MESSAGES, n=2, seed=3, max_tokens=8, logprobs=True, top_logprobs=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.logprobs.content
        assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content)
    return f"{answer.usage.completion_tokens} tokens"


@CLIENT.case("tools")
def tools() -> str:
    """The loop that every agent has: a call, its result, the answer."""
    messages = [{"role": "user", "content": QUESTION}]
    sent = {"model": MODEL, "temperature": 0, "max_tokens": 120, "tools": [TOOL]}
    forced = {"type": "function", "function": {"name": "lookup"}}
    message = openai_client.chat.completions.parse(**sent, messages=messages, tool_choice=forced).choices[0].message
    (call,) = message.tool_calls
    assert isinstance(call.function.parsed_arguments, Lookup)
    result = {"role": "tool", "tool_call_id": call.id, "content": "the number of items in a container"}
    answer = openai_client.chat.completions.create(
        **sent, messages=[*messages, message, result], tool_choice="none"
    ).choices[0]
    assert not answer.message.tool_calls
    assert "number of items" in answer.message.content
    return call.function.arguments


@CLIENT.case("tools, stream")
def tools_stream() -> str:
    sent = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 120}
    with openai_client.chat.completions.stream(**sent, tools=[TOOL], tool_choice="required") as events:
        done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
        completion = events.get_final_completion()
    assert completion.choices[0].finish_reason == "tool_calls"
    assert {event.name for event in done} == {"lookup"}
    assert all(isinstance(event.parsed_arguments, Lookup) for event in done)
    return done[0].arguments


@CLIENT.case("structured")
def structured() -> str:
    answer = openai_client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Fact, temperature=0, max_tokens=200
    )
    assert isinstance(answer.choices[0].message.parsed, Fact)
    return answer.choices[0].message.content


@CLIENT.case("completions")
def completions() -> str:
    sent = {"model": MODEL, "prompt": TURN, "temperature": 0, "max_tokens": 12}
    whole = openai_client.completions.create(**sent).choices[0].text
    parts = [chunk.choices[0].text for chunk in openai_client.completions.create(**sent, stream=True)]
    assert "".join(parts) == whole
    assert "number of items" in whole
    return json.dumps(whole)


@CLIENT.case("embeddings")
def embeddings() -> str:
    """The client asks for base64 unless told otherwise, and decodes it."""
    vectors = openai_client.embeddings.create(model=MODEL, input=["len", "sorted"])
    floats = openai_client.embeddings.create(model=MODEL, input=["len", "sorted"], encoding_format="float")
    assert [each.index for each in vectors.data] == [0, 1]
    for one, other in zip(vectors.data, floats.data, strict=True):
        assert max(abs(a - b) for a, b in zip(one.embedding, other.embedding, strict=True)) < 1e-3
    return f"2 of {len(vectors.data[0].embedding)}"


def _error(**sent: object) -> openai.APIStatusError:
    try:
        openai_client.chat.completions.create(**{"model": MODEL, "messages": MESSAGES, "max_tokens": 5, **sent})
    except openai.APIStatusError as error:
        return error
    raise AssertionError("answered")


@CLIENT.case("errors")
def errors() -> str:
    """Mapped to the client's exceptions, with the codes and texts that callers look for."""
    unknown = _error(model="no-such-model")
    assert isinstance(unknown, openai.NotFoundError)
    assert unknown.code == "model_not_found"
    long = _error(messages=[{"role": "user", "content": "len " * 9000}])
    assert isinstance(long, openai.BadRequestError)
    assert long.code == "context_length_exceeded"
    assert "maximum context length" in long.message
    return unknown.message


CLIENT.main()
