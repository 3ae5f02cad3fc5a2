"""OpenAI's Agents SDK: a client of the openai package with the server's URL, by chat completions and by responses."""

from __future__ import annotations

from typing import Literal

from agents import (
    Agent,
    AgentOutputSchema,
    GuardrailFunctionOutput,
    InputGuardrail,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunContextWrapper,
    Runner,
    SQLiteSession,
    ToolCallItem,
    ToolCallOutputItem,
    function_tool,
    handoff,
    set_tracing_disabled,
)
from case import API_KEY, BASE_URL, MODEL, Client
from httpx import Limits
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from openai.types.responses import ResponseTextDeltaEvent
from pydantic import BaseModel

CLIENT = Client("OpenAI Agents SDK", "openai-agents")
QUESTION = "What does len do?"
set_tracing_disabled(True)  # traces go to OpenAI's own servers
looked_up: list[str] = []


class Fact(BaseModel):
    """A fact about Python."""

    kind: Literal["function", "statement"]
    useful: bool


@function_tool
def lookup(name: Literal["len", "abs"]) -> str:
    """Look a built-in function up in Python's documentation."""
    looked_up.append(name)
    return f"{name}: the number of items in a container"


def agent(api: str, *, choice: str | None = None, **options: object) -> Agent:
    """An agent whose model is the server's. Once a tool was called the SDK itself lifts ``choice``."""
    unkept = DefaultAsyncHttpxClient(limits=Limits(max_keepalive_connections=0))  # each case has its own event loop
    openai_client = AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY, http_client=unkept)
    kind = OpenAIResponsesModel if api == "responses" else OpenAIChatCompletionsModel
    settings = ModelSettings(temperature=0, max_tokens=80, tool_choice=choice, include_usage=True)
    return Agent(name="helper", model=kind(MODEL, openai_client), model_settings=settings, **options)


async def answered(api: str) -> str:
    """A chat, and what it counted."""
    found = await Runner.run(agent(api), QUESTION)
    assert "number of items" in found.final_output
    usage = found.context_wrapper.usage
    assert usage.requests == 1
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens > 0
    return found.final_output


async def streamed(api: str) -> str:
    """Pieces of the text and the run's own events."""
    run = Runner.run_streamed(agent(api), QUESTION)
    events = [event async for event in run.stream_events()]
    raw = [event.data for event in events if event.type == "raw_response_event"]
    text = "".join(event.delta for event in raw if isinstance(event, ResponseTextDeltaEvent))
    assert text == run.final_output
    assert "number of items" in text
    assert raw[0].type == "response.created", [event.type for event in raw]
    assert raw[-1].type == "response.completed", [event.type for event in raw]
    assert run.context_wrapper.usage.output_tokens > 0
    return f"{len(events)} events: {text}"


async def called(api: str) -> str:
    """The loop: a call that the first turn has to make, its result, and the answer of the turn after it."""
    looked_up.clear()
    found = await Runner.run(agent(api, choice="required", tools=[lookup]), QUESTION, max_turns=4)
    kinds = [type(item) for item in found.new_items]
    assert looked_up == ["len"], kinds
    assert kinds[:2] == [ToolCallItem, ToolCallOutputItem], kinds
    assert found.new_items[1].output == f"{looked_up[0]}: the number of items in a container"
    assert "number of items" in found.final_output
    return f"{looked_up} → {found.final_output}"


async def typed(api: str) -> str:
    """An answer of a type, in the strict form of its schema and as pydantic writes it."""
    found = [
        (await Runner.run(agent(api, output_type=AgentOutputSchema(Fact, strict_json_schema=strict)), QUESTION))
        for strict in (True, False)
    ]
    assert all(isinstance(each.final_output, Fact) for each in found), found
    return repr(found[0].final_output)


@CLIENT.case("basic")
async def basic() -> str:
    return await answered("chat")


@CLIENT.case("stream")
async def stream() -> str:
    return await streamed("chat")


@CLIENT.case("tools")
async def tools() -> str:
    return await called("chat")


@CLIENT.case("tools, stream")
async def tools_stream() -> str:
    """A call streamed by either API, run once, its result in the stream."""
    shown = []
    for api in ("chat", "responses"):
        looked_up.clear()
        run = Runner.run_streamed(agent(api, choice="lookup", tools=[lookup]), QUESTION, max_turns=4)
        items = [event.item.type async for event in run.stream_events() if event.type == "run_item_stream_event"]
        assert items[:2] == ["tool_call_item", "tool_call_output_item"], items
        assert looked_up, items
        shown.append(f"{api}: {looked_up}")
    return ", ".join(shown)


@CLIENT.case("structured")
async def structured() -> str:
    return await typed("chat")


@CLIENT.case("handoff, guardrail")
async def handed_over() -> str:
    """Another agent takes over by a call; a guardrail asks the model about the input beside it."""

    async def allowed(_context: RunContextWrapper[None], _agent: Agent, text: str | list) -> GuardrailFunctionOutput:
        verdict = await Runner.run(agent("chat", output_type=Fact), text)
        return GuardrailFunctionOutput(output_info=verdict.final_output, tripwire_triggered=False)

    expert = agent("chat")
    expert.name = "expert"
    first = agent("chat", choice="required", handoffs=[handoff(expert)], input_guardrails=[InputGuardrail(allowed)])
    found = await Runner.run(first, QUESTION)
    assert found.last_agent is expert
    assert isinstance(found.input_guardrail_results[0].output.output_info, Fact)
    return found.final_output


@CLIENT.case("session")
async def session() -> str:
    """Turns kept by the client: the second sends the first again."""
    kept = SQLiteSession("here")
    first = await Runner.run(agent("chat"), QUESTION, session=kept)
    second = await Runner.run(agent("chat"), "What does abs do?", session=kept)
    assert second.context_wrapper.usage.input_tokens > first.context_wrapper.usage.input_tokens
    assert len(await kept.get_items()) == 4
    return second.final_output


@CLIENT.case("responses")
async def responses() -> str:
    return f"{await answered('responses')} {await streamed('responses')}"


@CLIENT.case("responses, tools, structured")
async def responses_tools() -> str:
    return f"{await called('responses')}; {await typed('responses')}"


@CLIENT.case("responses, conversation kept by the server")
async def responses_kept() -> str:
    """``previous_response_id``, within a run with a tool and between two runs."""
    looked_up.clear()
    helper = agent("responses", choice="required", tools=[lookup])
    first = await Runner.run(helper, QUESTION, auto_previous_response_id=True, max_turns=4)
    assert looked_up
    assert first.last_response_id.startswith("resp")
    second = await Runner.run(agent("responses"), "What does abs do?", previous_response_id=first.last_response_id)
    alone = await Runner.run(agent("responses"), "What does abs do?")
    assert second.context_wrapper.usage.input_tokens > alone.context_wrapper.usage.input_tokens
    return second.final_output


CLIENT.main()
