"""pydantic-ai: its chat and responses models, with a provider whose ``base_url`` is the server's.

Its model of Anthropic's API is not tried: this release cannot be used with version 2 of Anthropic's client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from case import API_KEY, BASE_URL, MODEL, Client
from pydantic import BaseModel, Field
from pydantic_ai import Agent, Embedder, NativeOutput, PromptedOutput, RunContext, ToolOutput, UsageLimits
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.messages import ToolCallPart, ToolReturnPart
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

CLIENT = Client("pydantic-ai", "pydantic-ai-slim")
OPENAI = OpenAIProvider(base_url=BASE_URL, api_key=API_KEY)
CHAT = OpenAIChatModel(MODEL, provider=OPENAI)
RESPONSES = OpenAIResponsesModel(MODEL, provider=OPENAI)
QUESTION = "What does len do?"
SETTINGS: Any = {"temperature": 0, "max_tokens": 200}


class Fact(BaseModel):
    """A fact about one of Python's functions."""

    name: str = Field(max_length=20)
    kind: Literal["function", "statement"]
    useful: bool


@dataclass
class CallsOnce(AbstractCapability[None]):
    """A function has to be called in the first step, and none in the others."""

    def get_model_settings(self) -> Any:
        def settings(context: RunContext[None]) -> ModelSettings:
            return ModelSettings(tool_choice="required" if context.run_step <= 1 else "none")

        return settings


def lookup(name: Annotated[str, Field(max_length=20)]) -> str:
    """Look a built-in function up in Python's documentation."""
    return f"{name} is documented"


def _typed(model: Model, output: Any) -> str:
    result = Agent(model, output_type=output, model_settings=SETTINGS, retries=0).run_sync(QUESTION)
    assert isinstance(result.output, Fact)
    return result.output.model_dump_json()


def _called(model: Model) -> str:
    agent = Agent(model, tools=[lookup], capabilities=[CallsOnce()], model_settings=SETTINGS)
    result = agent.run_sync(QUESTION)
    parts = [part for message in result.all_messages() for part in message.parts]
    calls = [part for part in parts if isinstance(part, ToolCallPart)]
    returned = [part for part in parts if isinstance(part, ToolReturnPart)]
    assert {call.tool_call_id for call in calls} == {part.tool_call_id for part in returned}
    assert calls
    assert result.usage.requests == 2
    return str(calls[0].args)


async def _streamed(model: Model) -> str:
    agent = Agent(model, model_settings=SETTINGS)
    async with agent.run_stream(QUESTION) as result:
        parts = [part async for part in result.stream_text(delta=True, debounce_by=None)]
    text = "".join(parts)
    assert text == (await agent.run(QUESTION)).output
    assert "number of items" in text
    assert result.usage.output_tokens > 0
    return f"{len(parts)} parts: {text}"


@CLIENT.case("basic")
def basic() -> str:
    agent = Agent(CHAT, instructions="Answer about Python.", model_settings=SETTINGS)
    result = agent.run_sync(QUESTION)
    assert "number of items" in result.output
    assert result.usage.input_tokens > 0
    follow = agent.run_sync("What does sorted do?", message_history=result.all_messages())
    assert follow.output
    return result.output


@CLIENT.case("stream")
async def stream() -> str:
    return await _streamed(CHAT)


@CLIENT.case("tools")
def tools() -> str:
    return _called(CHAT)


@CLIENT.case("structured, tool")
def structured_tool() -> str:
    return _typed(CHAT, ToolOutput(Fact))


@CLIENT.case("structured, native")
def structured_native() -> str:
    return _typed(CHAT, NativeOutput(Fact))


@CLIENT.case("structured, prompted")
def structured_prompted() -> str:
    """The schema stands in the prompt only: ``extra_body`` holds a small model to what a larger one would do."""
    settings = {**SETTINGS, "extra_body": {"guided_json": Fact.model_json_schema()}}
    result = Agent(CHAT, output_type=PromptedOutput(Fact), model_settings=settings, retries=0).run_sync(QUESTION)
    assert isinstance(result.output, Fact)
    return result.output.model_dump_json()


@CLIENT.case("structured, stream")
async def structured_stream() -> str:
    agent = Agent(CHAT, output_type=NativeOutput(Fact), model_settings=SETTINGS)
    async with agent.run_stream(QUESTION) as result:
        facts = [fact async for fact in result.stream_output(debounce_by=None)]
    assert isinstance(facts[-1], Fact)
    return facts[-1].model_dump_json()


@CLIENT.case("responses")
def responses() -> str:
    result = Agent(RESPONSES, instructions="Answer about Python.", model_settings=SETTINGS).run_sync(QUESTION)
    assert "number of items" in result.output
    return result.output


@CLIENT.case("responses, stream")
async def responses_stream() -> str:
    return await _streamed(RESPONSES)


@CLIENT.case("responses, tools")
def responses_tools() -> str:
    return _called(RESPONSES)


@CLIENT.case("responses, limited")
def responses_limited() -> str:
    """A prompt over the limit is not sent: the server counts its tokens before."""
    agent = Agent(RESPONSES, model_settings=SETTINGS)
    enough = UsageLimits(input_tokens_limit=1000, count_tokens_before_request=True)
    result = agent.run_sync(QUESTION, usage_limits=enough)
    assert "number of items" in result.output
    try:
        few = UsageLimits(input_tokens_limit=result.usage.input_tokens - 1, count_tokens_before_request=True)
        agent.run_sync(QUESTION, usage_limits=few)
    except UsageLimitExceeded as error:
        return str(error)
    raise AssertionError("a prompt over the limit was sent")


@CLIENT.case("responses, structured")
def responses_structured() -> str:
    _typed(RESPONSES, ToolOutput(Fact))
    return _typed(RESPONSES, NativeOutput(Fact))


@CLIENT.case("embeddings")
async def embeddings() -> str:
    embedder = Embedder(OpenAIEmbeddingModel(MODEL, provider=OPENAI))
    found = (await embedder.embed_documents(["len", "sorted"])).embeddings
    assert len(found) == 2
    return f"2 of {len(found[0])}"


CLIENT.main()
