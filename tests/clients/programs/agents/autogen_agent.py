"""AutoGen (autogen-agentchat): its OpenAI client takes a URL, and what the model can do, as no table knows its name."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import (
    ModelClientStreamingChunkEvent,
    StructuredMessage,
    TextMessage,
    ToolCallRequestEvent,
    ToolCallSummaryMessage,
)
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import CancellationToken
from autogen_core.models import (
    AssistantMessage,
    CreateResult,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    ModelFamily,
    ModelInfo,
    UserMessage,
)
from autogen_core.tools import FunctionTool
from autogen_ext.agents.openai import OpenAIAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from case import API_KEY, BASE_URL, MODEL, Client
from openai import AsyncOpenAI
from pydantic import BaseModel

CLIENT = Client("AutoGen", "autogen-agentchat")
QUESTION = [UserMessage(content="What does len do?", source="user")]
INFO = ModelInfo(
    vision=False,
    function_calling=True,
    json_output=True,
    family=ModelFamily.UNKNOWN,
    structured_output=True,
    multiple_system_messages=True,
)


class Verdict(BaseModel):
    """What is to be answered."""

    builtin: bool
    kind: Literal["function", "class"]


async def look_up(name: Literal["len", "abs"]) -> str:
    """Look a builtin of Python up."""
    return f"{name!r} was looked up"


async def lookup(name: str) -> str:
    """Look up a built-in function in Python's documentation."""
    return f"{name} was looked up"


@asynccontextmanager
async def model() -> AsyncIterator[OpenAIChatCompletionClient]:
    """The server's model."""
    found = OpenAIChatCompletionClient(
        model=MODEL, base_url=BASE_URL, api_key=API_KEY, model_info=INFO, temperature=0, max_tokens=60
    )
    yield found
    await found.close()


@CLIENT.case("basic")
async def basic() -> str:
    async with model() as chat:
        found = await chat.create(QUESTION)
    assert "number of items" in found.content, found
    assert found.finish_reason == "stop", found
    assert found.usage.prompt_tokens > 0
    assert found.usage.completion_tokens > 0
    return found.content


@CLIENT.case("stream")
async def stream() -> str:
    async with model() as chat:
        whole = await chat.create(QUESTION)
        parts = [part async for part in chat.create_stream(QUESTION, include_usage=True)]
    last = parts.pop()
    assert isinstance(last, CreateResult)
    assert last.content == whole.content == "".join(parts)
    assert last.usage == whole.usage
    assert last.finish_reason == "stop"
    return last.content


@CLIENT.case("tools")
async def tools() -> str:
    tool = FunctionTool(look_up, description="Look a builtin of Python up.")
    async with model() as chat:
        found = await chat.create(QUESTION, tools=[tool], tool_choice=tool)
        assert found.finish_reason == "function_calls", found
        (call,) = found.content
        result = await tool.run_json(json.loads(call.arguments), CancellationToken())
        results = FunctionExecutionResult(content=result, name=call.name, call_id=call.id, is_error=False)
        said = [*QUESTION, AssistantMessage(content=[call], source="helper")]
        said.append(FunctionExecutionResultMessage(content=[results]))
        second = await chat.create(said, tools=[tool], tool_choice="none")
    assert isinstance(second.content, str), second
    assert second.finish_reason == "stop", second
    return f"{result} → {second.content}"


@CLIENT.case("tools, stream")
async def tools_stream() -> str:
    tool = FunctionTool(look_up, description="Look a builtin of Python up.", strict=True)
    async with model() as chat:
        parts = [part async for part in chat.create_stream(QUESTION, tools=[tool], tool_choice="required")]
    calls = parts[-1].content
    assert parts[-1].finish_reason == "function_calls", parts
    assert calls[0].id, parts
    return f"{calls[0].name}({json.loads(calls[0].arguments)})"


@CLIENT.case("structured")
async def structured() -> str:
    async with model() as chat:
        helper = AssistantAgent("helper", chat, output_content_type=Verdict)
        found = await helper.run(task="Is len a builtin?")
    message = found.messages[-1]
    assert isinstance(message, StructuredMessage), message
    assert isinstance(message.content, Verdict), message
    return repr(message.content)


@CLIENT.case("agent")
async def agent() -> str:
    """An agent cannot be told to call its tool: the model does by itself, as it learned of such a tool."""
    async with model() as chat:
        tool = FunctionTool(lookup, description="Look up a built-in function in Python's documentation.")
        helper = AssistantAgent("helper", chat, tools=[tool], system_message=None)
        found = await helper.run(task="What does len do? Look it up.")
    calls = [call for each in found.messages if isinstance(each, ToolCallRequestEvent) for call in each.content]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("lookup", {"name": "len"})], found
    last = found.messages[-1]
    assert isinstance(last, ToolCallSummaryMessage), found
    assert last.content == "len was looked up", found
    return f"{[type(each).__name__ for each in found.messages]} {last.content}"


@CLIENT.case("team, stream")
async def team() -> str:
    async with model() as chat:
        agents = [
            AssistantAgent(name, chat, model_client_stream=True, system_message=None) for name in ("first", "second")
        ]
        team = RoundRobinGroupChat(agents, termination_condition=MaxMessageTermination(3))
        events = [event async for event in team.run_stream(task="What does len do?")]
    assert isinstance(events[-1], TaskResult)
    said = {"first": "", "second": ""}
    for event in events:
        if isinstance(event, ModelClientStreamingChunkEvent):
            said[event.source] += event.content
    texts = {event.source: event.content for event in events if isinstance(event, TextMessage)}
    assert said == {name: texts[name] for name in said}, events
    assert "number of items" in said["first"], events
    return said["second"]


@CLIENT.case("responses")
async def responses() -> str:
    """Its agent of the responses, whose second turn names the first by id."""
    async with AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY) as openai:
        helper = OpenAIAgent(
            "helper", "answers", openai, MODEL, "You know Python.", temperature=0, max_output_tokens=60
        )
        said = [await helper.run(task=f"What does {name} do?") for name in ("len", "abs")]
    texts = [each.messages[-1].content for each in said]
    assert "number of items" in texts[0], texts
    assert "absolute value" in texts[1], texts
    return texts[1]


CLIENT.main()
