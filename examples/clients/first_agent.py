"""A first agent: the model decides itself to call a function, and answers from its result."""

from __future__ import annotations

import builtins
import inspect
import json
from typing import Any

from server import client, model

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "lookup",
            "description": "Look up a built-in function in Python's documentation.",
            "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
        },
    }
]


def lookup(name: str) -> str:
    """The first line of what ``name`` is documented as."""
    found = getattr(builtins, name, None)
    return (inspect.getdoc(found) or "").partition("\n")[0] if found else f"there is no {name}"


def agent(question: str, turns: int = 5) -> str:
    """Calls what the model asks for until it answers."""
    openai, name = client(), model()
    messages: list[Any] = [{"role": "user", "content": question}]
    for _ in range(turns):
        message = (
            openai.chat.completions.create(model=name, messages=messages, tools=TOOLS, temperature=0, max_tokens=200)
            .choices[0]
            .message
        )
        if not message.tool_calls:
            return message.content or ""
        messages.append(message)
        for call in message.tool_calls:
            print(f"calls {call.function.name}({call.function.arguments})")
            result = lookup(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    raise RuntimeError(f"no answer after {turns} turns")


if __name__ == "__main__":
    print(agent("What does len do? Look it up."))
