"""Semantic Kernel: its chat service takes an OpenAI client, and that one the URL of the server.

Once a plugin's function has answered, the library sends the whole conversation again with ``tool_choice="none"``: a
turn ends by itself.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from functools import reduce
from operator import add
from typing import Annotated, Any, Literal

from case import API_KEY, BASE_URL, MODEL, Client
from openai import AsyncOpenAI
from pydantic import BaseModel
from semantic_kernel import Kernel
from semantic_kernel.agents import ChatCompletionAgent, OpenAIResponsesAgent
from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.contents import ChatHistory, FunctionCallContent, FunctionResultContent
from semantic_kernel.functions import KernelArguments, kernel_function

CLIENT = Client("Semantic Kernel", "semantic-kernel")


class Builtin(StrEnum):
    """What the function takes: the library writes an enumeration as a schema, and not a ``Literal``."""

    LEN = "len"
    ABS = "abs"


class Looker:
    """A plugin of one function."""

    names: list[str]

    def __init__(self) -> None:
        self.names = []

    @kernel_function(description="Look a builtin of Python up.")
    def look_up(self, name: Annotated[Builtin, "the name of the builtin"]) -> str:
        """What is known of a name."""
        self.names.append(name)
        return "the number of items"


class Verdict(BaseModel):
    """What is to be answered."""

    builtin: bool
    kind: Literal["function", "class"]


@asynccontextmanager
async def service() -> AsyncIterator[OpenAIChatCompletion]:
    """The chat service of the server."""
    async with AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY) as openai:
        yield OpenAIChatCompletion(ai_model_id=MODEL, service_id="chat", async_client=openai)


def settings(**options: Any) -> OpenAIChatPromptExecutionSettings:
    """How to answer."""
    return OpenAIChatPromptExecutionSettings(temperature=0, max_tokens=80, **options)


def history(text: str = "What does len do?") -> ChatHistory:
    """A conversation of one question."""
    chat = ChatHistory(system_message="You know Python.")
    chat.add_user_message(text)
    return chat


@CLIENT.case("basic")
async def basic() -> str:
    async with service() as chat:
        found = await chat.get_chat_message_content(history(), settings())
    assert found is not None, found
    assert "number of items" in found.content, found
    assert found.finish_reason == "stop", found
    assert found.metadata["usage"].completion_tokens > 0, found
    return found.content


@CLIENT.case("stream")
async def stream() -> str:
    async with service() as chat:
        whole = await chat.get_chat_message_content(history(), settings())
        parts = [part async for part in chat.get_streaming_chat_message_content(history(), settings())]
    joined = "".join(part.content for part in parts)
    assert joined == whole.content
    assert [part.finish_reason for part in parts if part.finish_reason] == ["stop"]
    usage = [part.metadata["usage"] for part in parts if part.metadata.get("usage")]
    assert sum(each.completion_tokens for each in usage) == whole.metadata["usage"].completion_tokens
    return joined


@CLIENT.case("tools")
async def tools() -> str:
    kernel, looker, said = Kernel(), Looker(), history()
    kernel.add_plugin(looker, plugin_name="docs")
    forced = settings(function_choice_behavior=FunctionChoiceBehavior.Required())
    async with service() as chat:
        found = await chat.get_chat_message_content(said, forced, kernel=kernel)
    items = [item for message in said.messages for item in message.items]
    calls = [item for item in items if isinstance(item, FunctionCallContent)]
    results = [item for item in items if isinstance(item, FunctionResultContent)]
    assert looker.names, items
    assert [call.name for call in calls] == ["docs-look_up"] * len(looker.names), items
    assert [result.result for result in results] == ["the number of items"] * len(calls)
    assert found is not None, found
    assert found.content, found
    assert found.finish_reason == "stop", found
    return f"{[str(call.arguments) for call in calls]} → {found.content}"


@CLIENT.case("tools, stream")
async def tools_stream() -> str:
    kernel = Kernel()
    kernel.add_plugin(Looker(), plugin_name="docs")
    forced = settings(function_choice_behavior=FunctionChoiceBehavior.Required(auto_invoke=False))
    async with service() as chat:
        parts = [part async for part in chat.get_streaming_chat_message_content(history(), forced, kernel=kernel)]
    joined = reduce(add, parts)
    calls = [item for item in joined.items if isinstance(item, FunctionCallContent)]
    assert calls, joined
    assert calls[0].name == "docs-look_up", joined
    assert calls[0].id, joined
    assert "tool_calls" in [part.finish_reason for part in parts]
    return f"{calls[0].name}({json.loads(calls[0].arguments)})"


@CLIENT.case("structured")
async def structured() -> str:
    async with service() as chat:
        found = await chat.get_chat_message_content(history("Is len a builtin?"), settings(response_format=Verdict))
    return repr(Verdict.model_validate_json(found.content))


@CLIENT.case("agent")
async def agent() -> str:
    async with service() as chat:
        helper = ChatCompletionAgent(
            service=chat, name="Helper", instructions="You know Python.", arguments=KernelArguments(settings=settings())
        )
        found = await helper.get_response(messages="What does len do?")
        followed = await helper.get_response(messages="What does abs do?", thread=found.thread)
    assert "number of items" in str(found.content), (found, followed)
    assert "absolute value" in str(followed.content), (found, followed)
    return str(followed.content)


@CLIENT.case("responses, stream")
async def responses() -> str:
    """An agent of the responses, whose conversation the server keeps."""
    async with AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY) as openai:
        helper = OpenAIResponsesAgent(
            ai_model_id=MODEL, client=openai, name="Helper", instructions="You know Python.", temperature=0
        )
        found = await helper.get_response(messages="What does len do?")
        parts = [part async for part in helper.invoke_stream(messages="What does abs do?", thread=found.thread)]
    joined = "".join(str(part.content) for part in parts)
    assert "number of items" in str(found.content), found
    assert "absolute value" in joined, joined
    assert found.thread.id.startswith("resp_"), found.thread
    return joined


CLIENT.main()
