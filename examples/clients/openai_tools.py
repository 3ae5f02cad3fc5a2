"""Functions the model may call, with chat completions and with responses, through OpenAI's own client."""

from __future__ import annotations

import builtins
import json
from typing import Any

from server import client, model

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}},
    "required": ["name"],
    "additionalProperties": False,
}
DESCRIPTION = "Look up a built-in function in Python's documentation"


def lookup(name: str) -> str:
    """What ``name`` is documented as."""
    return str(getattr(getattr(builtins, name, None), "__doc__", None) or f"there is no {name}").partition("\n")[0]


def with_chat(question: str) -> str:
    """The first turn has to call the function, the second answers."""
    tools: list[Any] = [
        {"type": "function", "function": {"name": "lookup", "description": DESCRIPTION, "parameters": SCHEMA}}
    ]
    messages: list[Any] = [{"role": "user", "content": question}]
    openai, name = client(), model()
    first = openai.chat.completions.create(
        model=name, messages=messages, tools=tools, tool_choice="required", parallel_tool_calls=False, temperature=0
    )
    message = first.choices[0].message
    messages.append(message)
    for call in message.tool_calls or []:
        print(f"  calls {call.function.name}({call.function.arguments})")
        result = lookup(**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    second = openai.chat.completions.create(
        model=name, messages=messages, tools=tools, tool_choice="none", temperature=0, max_tokens=100
    )
    return second.choices[0].message.content or ""


def with_responses(question: str) -> str:
    """The same, streamed."""
    tools: list[Any] = [
        {"type": "function", "name": "lookup", "description": DESCRIPTION, "parameters": SCHEMA, "strict": True}
    ]
    items: list[Any] = [{"role": "user", "content": question}]
    openai, name = client(), model()
    with openai.responses.stream(
        model=name, input=items, tools=tools, tool_choice={"type": "function", "name": "lookup"}, temperature=0
    ) as stream:
        for event in stream:
            if event.type == "response.function_call_arguments.delta":
                print(f"  … {event.delta!r}")
        first = stream.get_final_response()
    items += [item.model_dump(exclude_none=True) for item in first.output]  # nothing is stored on the server
    for item in first.output:
        if item.type == "function_call":
            result = lookup(**json.loads(item.arguments))
            items.append({"type": "function_call_output", "call_id": item.call_id, "output": result})
    second = openai.responses.create(
        model=name, input=items, tools=tools, tool_choice="none", temperature=0, max_output_tokens=100
    )
    return second.output_text


if __name__ == "__main__":
    for ask in (with_chat, with_responses):
        print(ask.__name__)
        print(f"  {ask('What does len do?')}")
