"""Anthropic's Python client: ``base_url`` is the server's without ``/v1``, which it adds."""

from __future__ import annotations

from typing import Annotated, Any

import anthropic
from anthropic import Anthropic, AsyncAnthropic, beta_tool
from case import API_KEY, MODEL, ROOT_URL, Client
from pydantic import BaseModel, Field

CLIENT = Client("Anthropic (Python)", "anthropic")
anthropic_client = Anthropic(base_url=ROOT_URL, api_key=API_KEY)
MESSAGES: list[Any] = [{"role": "user", "content": "What does len do?"}]
GREEDY = {"temperature": 0}
"""The client has no argument for it any more; servers do."""
SENT: dict[str, Any] = {"model": MODEL, "max_tokens": 100, "messages": MESSAGES, "extra_body": GREEDY}
LOOKUP: Any = {
    "name": "lookup",
    "description": "Look a built-in function up in Python's documentation",
    "input_schema": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}},
        "required": ["name"],
        "additionalProperties": False,
    },
    "strict": True,
}
looked_up: list[str] = []


class Fact(BaseModel):
    name: str = Field(max_length=20)
    useful: bool


@beta_tool
def lookup(name: Annotated[str, Field(max_length=20)]) -> str:
    """Look a built-in function up in Python's documentation.

    Args:
        name: the function's name
    """
    looked_up.append(name)
    return "the number of items in a container"


@CLIENT.case("models")
def models() -> str:
    listed = [model.id for model in anthropic_client.models.list()]
    assert MODEL in listed, listed
    assert anthropic_client.models.retrieve(MODEL).id == MODEL
    return " ".join(listed)


@CLIENT.case("basic")
def basic() -> str:
    message = anthropic_client.messages.create(**SENT, system="Answer about Python.")
    (block,) = message.content
    assert block.type == "text"
    assert "number of items" in block.text
    assert message.stop_reason == "end_turn"
    assert message.usage.input_tokens > 0
    return block.text


@CLIENT.case("basic, async")
async def basic_async() -> str:
    async with AsyncAnthropic(base_url=ROOT_URL, api_key=API_KEY) as api:
        message = await api.messages.create(**SENT)
    assert "number of items" in message.content[0].text
    return message.content[0].text


@CLIENT.case("stop sequence")
def stop_sequence() -> str:
    message = anthropic_client.messages.create(**SENT, stop_sequences=["items"])
    assert message.stop_reason == "stop_sequence"
    assert message.stop_sequence == "items"
    return message.content[0].text


@CLIENT.case("stream")
def stream() -> str:
    with anthropic_client.messages.stream(**SENT) as events:
        text = "".join(events.text_stream)
        message = events.get_final_message()
    assert text == message.content[0].text == anthropic_client.messages.create(**SENT).content[0].text
    assert message.usage.output_tokens > 0
    raw = [event.type for event in anthropic_client.messages.create(**SENT, stream=True)]
    assert raw[:2] == ["message_start", "content_block_start"]
    assert raw[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    return f"{len(raw)} events: {text}"


@CLIENT.case("stream, async")
async def stream_async() -> str:
    api = AsyncAnthropic(base_url=ROOT_URL, api_key=API_KEY)
    async with api, api.messages.stream(**SENT) as events:
        text = "".join([part async for part in events.text_stream])
    assert "number of items" in text
    return text


@CLIENT.case("tools")
def tools() -> str:
    sent = {**SENT, "tools": [LOOKUP]}
    first = anthropic_client.messages.create(**sent, tool_choice={"type": "tool", "name": "lookup"})
    assert first.stop_reason == "tool_use"
    (call,) = [block for block in first.content if block.type == "tool_use"]
    assert set(call.input) == {"name"}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "the number of items"}
    turns = [*MESSAGES, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = anthropic_client.messages.create(**{**sent, "messages": turns}, tool_choice={"type": "none"})
    assert second.stop_reason == "end_turn"
    assert "number of items" in second.content[0].text
    return str(call.input)


@CLIENT.case("tools, stream")
def tools_stream() -> str:
    with anthropic_client.messages.stream(**SENT, tools=[LOOKUP], tool_choice={"type": "any"}) as events:
        kinds = [event.type for event in events]
        message = events.get_final_message()
    assert "input_json" in kinds
    (call,) = [block for block in message.content if block.type == "tool_use"]
    assert set(call.input) == {"name"}
    return str(call.input)


@CLIENT.case("tools, runner")
def tools_runner() -> str:
    """The client's own loop. A tool has to be called each time, so it ends at the most turns it may take."""
    looked_up.clear()
    runner = anthropic_client.beta.messages.tool_runner(
        **SENT, tools=[lookup], tool_choice={"type": "tool", "name": "lookup"}, max_iterations=2
    )
    turns = [message.stop_reason for message in runner]
    assert turns == ["tool_use", "tool_use"], turns
    assert looked_up
    return str(looked_up)


@CLIENT.case("structured")
def structured() -> str:
    message = anthropic_client.messages.parse(**SENT, output_format=Fact)
    assert isinstance(message.parsed_output, Fact)
    return message.parsed_output.model_dump_json()


@CLIENT.case("counted tokens")
def counted() -> str:
    count = anthropic_client.messages.count_tokens(model=MODEL, messages=MESSAGES, tools=[LOOKUP])
    usage = anthropic_client.messages.create(**SENT, tools=[LOOKUP]).usage
    assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    return str(count.input_tokens)


@CLIENT.case("errors")
def errors() -> str:
    try:
        anthropic_client.messages.create(**{**SENT, "model": "no-such-model"})
    except anthropic.NotFoundError as error:
        message, kind = str(error), error.body["error"]["type"]
    assert kind == "not_found_error"
    return message


CLIENT.main()
