"""OpenAI's Python client on its newer API, responses: blocking and asynchronous."""

from __future__ import annotations

from typing import Literal

import openai
from case import API_KEY, BASE_URL, MODEL, Client
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field

CLIENT = Client("OpenAI (Python), responses", "openai")
openai_client = OpenAI(base_url=BASE_URL, api_key=API_KEY)
QUESTION = "What does len do?"


class Lookup(BaseModel):
    """Look a built-in function up in Python's documentation."""

    name: str = Field(max_length=20)
    section: Literal["functions", "types"]


class Fact(BaseModel):
    name: str = Field(max_length=20)
    kind: Literal["function", "statement"]
    useful: bool


TOOL = {"type": "function", **openai.pydantic_function_tool(Lookup, name="lookup")["function"]}
"""Not nested, as this API has it."""


@CLIENT.case("basic")
def basic() -> str:
    response = openai_client.responses.create(model=MODEL, input=QUESTION, temperature=0, max_output_tokens=60)
    assert response.status == "completed"
    assert "number of items" in response.output_text
    follow = openai_client.responses.create(
        model=MODEL, input="And sorted?", previous_response_id=response.id, max_output_tokens=20
    )
    assert follow.usage.input_tokens > response.usage.input_tokens
    assert follow.previous_response_id == response.id
    assert openai_client.responses.retrieve(response.id).output_text == response.output_text
    openai_client.responses.delete(response.id)
    return response.output_text


@CLIENT.case("stream")
def stream() -> str:
    with openai_client.responses.stream(model=MODEL, input=QUESTION, temperature=0, max_output_tokens=60) as events:
        kinds = [event.type for event in events]
        response = events.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert kinds.index("response.output_text.delta") < kinds.index("response.output_text.done")
    assert "number of items" in response.output_text
    return f"{len(kinds)} events"


@CLIENT.case("tools")
def tools() -> str:
    sent = {"model": MODEL, "temperature": 0, "max_output_tokens": 120, "tools": [TOOL]}
    first = openai_client.responses.create(
        **sent, input=QUESTION, tool_choice={"type": "function", "name": "lookup"}, store=False
    )
    (call,) = [item for item in first.output if item.type == "function_call"]
    Lookup.model_validate_json(call.arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "the number of items"}
    question = {"role": "user", "content": QUESTION}
    second = openai_client.responses.create(**sent, input=[question, *first.output, result], tool_choice="none")
    assert not [item for item in second.output if item.type == "function_call"]
    assert "number of items" in second.output_text
    return call.arguments


@CLIENT.case("tools, stream")
async def tools_stream() -> str:
    api = AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY)
    sent = {"model": MODEL, "input": QUESTION, "temperature": 0, "max_output_tokens": 120, "tools": [TOOL]}
    async with api, api.responses.stream(**sent, tool_choice="required", parallel_tool_calls=False) as events:
        kinds = [event.type async for event in events]
        response = await events.get_final_response()
    (call,) = [item for item in response.output if item.type == "function_call"]
    assert isinstance(Lookup.model_validate(call.parsed_arguments), Lookup)
    assert kinds.index("response.function_call_arguments.delta") < kinds.index("response.function_call_arguments.done")
    return call.arguments


@CLIENT.case("structured")
def structured() -> str:
    parsed = openai_client.responses.parse(
        model=MODEL, input=QUESTION, text_format=Fact, temperature=0, max_output_tokens=200
    ).output_parsed
    assert isinstance(parsed, Fact)
    return parsed.model_dump_json()


@CLIENT.case("counted tokens")
def counted() -> str:
    sent = {"model": MODEL, "input": QUESTION, "instructions": "Answer about Python.", "tools": [TOOL]}
    count = openai_client.responses.input_tokens.count(**sent)
    assert count.input_tokens == openai_client.responses.create(**sent, max_output_tokens=20).usage.input_tokens
    return str(count.input_tokens)


CLIENT.main()
