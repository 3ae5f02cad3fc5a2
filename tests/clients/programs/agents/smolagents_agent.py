"""smolagents: its OpenAI-compatible model takes a URL.

A ``ToolCallingAgent`` demands a call (``tool_choice="required"``), and a ``CodeAgent`` with structured outputs a JSON
object of a thought and code; which tool and what code are the model's to say, so that each takes one step here.
"""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from io import StringIO
from typing import Any, ClassVar

from case import API_KEY, BASE_URL, MODEL, Client
from smolagents import ChatMessage, CodeAgent, OpenAIModel, OpenAIServerModel, Tool, ToolCallingAgent
from smolagents.agents import ActionStep, MultiStepAgent
from smolagents.models import ChatMessageStreamDelta, agglomerate_stream_deltas

CLIENT = Client("smolagents", "smolagents")
QUESTION = [ChatMessage(role="user", content=[{"type": "text", "text": "What does len do?"}])]


class LookUp(Tool):
    """A tool of one argument."""

    name = "look_up"
    description = "Looks a builtin of Python up."
    inputs: ClassVar = {"name": {"type": "string", "description": "the name of the builtin", "enum": ["len", "abs"]}}
    output_type = "string"

    def forward(self, name: str) -> str:
        """What is known of a name."""
        return f"{name} was looked up"


def model(kind: type[OpenAIModel] = OpenAIModel, **options: Any) -> OpenAIModel:
    """The server's model."""
    return kind(model_id=MODEL, api_base=BASE_URL, api_key=API_KEY, temperature=0, max_tokens=100, **options)


@CLIENT.case("basic")
def basic() -> str:
    found = model(OpenAIServerModel).generate(QUESTION)
    assert "number of items" in found.content, found
    assert found.role == "assistant", found
    assert found.token_usage.input_tokens > 0
    assert found.token_usage.output_tokens > 0
    return found.content


@CLIENT.case("stream")
def stream() -> str:
    whole = model().generate(QUESTION, stop_sequences=["items"])
    joined = agglomerate_stream_deltas(list(model().generate_stream(QUESTION, stop_sequences=["items"])))
    assert joined.content == whole.content, (joined, whole)
    assert whole.content.endswith("the number of "), (joined, whole)
    assert joined.token_usage == whole.token_usage
    return joined.content


@CLIENT.case("tools")
def tools() -> str:
    found = model().generate(QUESTION, tools_to_call_from=[LookUp()])
    call = found.tool_calls[0]
    assert found.raw.choices[0].finish_reason == "tool_calls", found
    assert call.function.name == "look_up", found
    return LookUp()(**json.loads(call.function.arguments))


@CLIENT.case("tools, stream")
def tools_stream() -> str:
    found = agglomerate_stream_deltas(list(model().generate_stream(QUESTION, tools_to_call_from=[LookUp()])))
    call = found.tool_calls[0]
    assert call.function.name == "look_up", found
    assert call.id, found
    return LookUp()(**json.loads(call.function.arguments))


@CLIENT.case("structured")
def structured() -> str:
    schema = {"type": "object", "properties": {"builtin": {"type": "boolean"}}, "required": ["builtin"]}
    answer = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": schema, "strict": True}}
    found = json.loads(model().generate(QUESTION, response_format=answer).content)
    assert isinstance(found["builtin"], bool)
    return repr(found)


def steps(agent: MultiStepAgent) -> tuple[ActionStep, str]:
    """The agent's one step, and the text that was streamed; what it shows on a terminal is left out."""
    with redirect_stdout(StringIO()):
        events = list(agent.run("What does len do? Look it up.", stream=True))
    deltas = [event for event in events if isinstance(event, ChatMessageStreamDelta)]
    assert deltas, events
    return next(event for event in events if isinstance(event, ActionStep)), agglomerate_stream_deltas(deltas).content


@CLIENT.case("agent: tool calls")
def agent() -> str:
    step, _ = steps(ToolCallingAgent(tools=[LookUp()], model=model(), max_steps=1, stream_outputs=True))
    assert step.tool_calls, step
    assert step.observations, step
    return f"{step.tool_calls[0].name}({step.tool_calls[0].arguments}) → {step.observations}"


@CLIENT.case("agent: code")
def code_agent() -> str:
    helper = CodeAgent(
        tools=[LookUp()],
        model=model(),
        max_steps=1,
        use_structured_outputs_internally=True,
        stream_outputs=True,
    )
    step, text = steps(helper)
    assert step.model_output == text, step
    assert set(json.loads(text)) == {"thought", "code"}, step
    return text


CLIENT.main()
