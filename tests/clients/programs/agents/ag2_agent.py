"""AG2: its configuration of OpenAI's chat completions, and of its responses, takes a URL."""

from __future__ import annotations

import json
from typing import Any, Literal

from ag2 import Agent, tool
from ag2.config import OpenAIConfig, OpenAIResponsesConfig
from ag2.events import ModelMessageChunk, ToolCallEvent, ToolResult
from ag2.stream import MemoryStream
from case import API_KEY, BASE_URL, MODEL, Client, until_awaited
from pydantic import BaseModel

CLIENT = Client("AG2", "ag2")


class Verdict(BaseModel):
    """What is to be answered."""

    builtin: bool
    kind: Literal["function", "class"]


@tool
async def look_up(name: Literal["len", "abs"]) -> ToolResult:
    """Look a builtin of Python up."""
    return ToolResult(f"{name} was looked up", final=True)  # the turn ends here: its model was told to call a tool


@tool
async def lookup(name: str) -> ToolResult:
    """Look up a built-in function in Python's documentation."""
    return ToolResult(f"{name} was looked up", final=True)


def chat(**options: Any) -> OpenAIConfig:
    """The server's chat completions."""
    return OpenAIConfig(model=MODEL, base_url=BASE_URL, api_key=API_KEY, temperature=0, max_tokens=80, **options)


def responses(**options: Any) -> OpenAIResponsesConfig:
    """The server's responses."""
    return OpenAIResponsesConfig(
        model=MODEL, base_url=BASE_URL, api_key=API_KEY, temperature=0, max_output_tokens=80, **options
    )


async def asked(config: OpenAIConfig | OpenAIResponsesConfig, text: str = "What does len do?") -> Any:
    """The agent's reply to one message."""
    reply = await Agent("helper", config=config).ask(text)
    assert reply.body, reply.response
    assert reply.response.usage.completion_tokens > 0, reply.response
    return reply


async def streamed(config: OpenAIConfig | OpenAIResponsesConfig) -> tuple[str, str]:
    """The agent's reply, and the pieces it came in."""

    async def ask() -> tuple[str, list[str]]:
        pieces: list[str] = []
        events = MemoryStream()
        events.where(ModelMessageChunk).subscribe(lambda event: pieces.append(event.content))
        reply = await Agent("helper", config=config).ask("What does len do?", stream=events)
        return reply.body, pieces

    body, pieces = await until_awaited(lambda found: len(found[1]) > 1, ask)
    return body, "".join(pieces)


@CLIENT.case("basic")
async def basic() -> str:
    reply = await asked(chat())
    assert "number of items" in reply.body
    assert reply.response.finish_reason == "stop"
    second = await reply.ask("What does abs do?")  # of the same conversation
    assert "absolute value" in second.body
    return second.body


@CLIENT.case("stream")
async def stream() -> str:
    body, joined = await streamed(chat(streaming=True))
    assert body == joined == (await asked(chat())).body
    return joined


async def called(forced: OpenAIConfig, free: OpenAIConfig) -> str:
    """A call that is demanded, its result, and an answer of the model's own to the whole conversation."""
    calls: list[ToolCallEvent] = []
    events = MemoryStream()
    events.where(ToolCallEvent).subscribe(lambda event: calls.append(event))
    reply = await Agent("helper", config=forced, tools=[look_up]).ask("What does len do?", stream=events)
    assert [call.name for call in calls] == ["look_up"], calls
    assert reply.body == f"{json.loads(calls[0].arguments)['name']} was looked up"
    second = await reply.ask("What does abs do?", config=free)
    assert second.body, second.response
    assert second.response.finish_reason == "stop", second.response
    assert len(calls) == 1, second.response
    return f"{reply.body} → {second.body}"


@CLIENT.case("tools")
async def tools() -> str:
    return await called(chat(tool_choice="required", parallel_tool_calls=False), chat(tool_choice="none"))


@CLIENT.case("tools, stream")
async def tools_stream() -> str:
    named: Any = {"type": "function", "function": {"name": "look_up"}}
    return await called(chat(tool_choice=named, streaming=True), chat(tool_choice="none", streaming=True))


@CLIENT.case("structured")
async def structured() -> str:
    agent = Agent("helper", config=chat(), response_schema=Verdict)
    verdict = await (await agent.ask("Is len a builtin?")).content()
    assert isinstance(verdict, Verdict)
    return repr(verdict)


@CLIENT.case("responses")
async def of_responses() -> str:
    reply = await asked(responses())
    assert "number of items" in reply.body
    return reply.body


@CLIENT.case("responses, stream")
async def responses_stream() -> str:
    body, joined = await streamed(responses(streaming=True))
    assert body == joined == (await asked(responses())).body
    return joined


@CLIENT.case("responses, tools")
async def responses_tools() -> str:
    """A call cannot be demanded here: the model makes it by itself, as it learned of such a tool."""
    calls: list[ToolCallEvent] = []
    events = MemoryStream()
    events.where(ToolCallEvent).subscribe(lambda event: calls.append(event))
    helper = Agent("helper", config=responses(), tools=[lookup])
    reply = await helper.ask("What does len do? Look it up.", stream=events)
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("lookup", {"name": "len"})], calls
    assert reply.body == "len was looked up", reply.response
    return reply.body


@CLIENT.case("responses, structured")
async def responses_structured() -> str:
    agent = Agent("helper", config=responses(), response_schema=Verdict)
    verdict = await (await agent.ask("Is len a builtin?")).content()
    assert isinstance(verdict, Verdict)
    return repr(verdict)


CLIENT.main()
