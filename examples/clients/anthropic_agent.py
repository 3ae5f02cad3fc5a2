"""Messages, streams, tools and counted tokens through Anthropic's own client."""

from __future__ import annotations

import builtins
from typing import Any

import anthropic
from server import API_KEY, MODEL, root_url

TOOLS: list[Any] = [
    {
        "name": "lookup",
        "description": "Look up a built-in function in Python's documentation",
        "input_schema": {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 20}},
            "required": ["name"],
            "additionalProperties": False,
        },
        "strict": True,
    }
]
GREEDY = {"temperature": 0}
"""The client has no argument for it any more; servers do."""
client = anthropic.Anthropic(base_url=root_url(), api_key=API_KEY)


def lookup(name: str) -> str:
    """What ``name`` is documented as."""
    return str(getattr(getattr(builtins, name, None), "__doc__", None) or f"there is no {name}").partition("\n")[0]


def answer(model: str, question: str) -> str:
    """One message, streamed."""
    question_: Any = {"role": "user", "content": question}
    with client.messages.stream(
        model=model, max_tokens=60, system="Answer about Python.", messages=[question_], extra_body=GREEDY
    ) as stream:
        return "".join(stream.text_stream)


def agent(model: str, question: str, turns: int = 3) -> Any:
    """The model calls the function, at first because it has to, until it answers."""
    messages: list[Any] = [{"role": "user", "content": question}]
    choice: Any = {"type": "any", "disable_parallel_tool_use": True}
    count = client.messages.count_tokens(model=model, messages=messages, tools=TOOLS, tool_choice=choice)
    print(f"  {count.input_tokens} tokens in the prompt")
    for turn in range(turns):
        message = client.messages.create(
            model=model, max_tokens=120, messages=messages, tools=TOOLS, tool_choice=choice, extra_body=GREEDY
        )
        messages.append({"role": "assistant", "content": message.content})
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            break
        results: list[Any] = []
        for call in calls:
            print(f"  calls {call.name}({call.input})")
            content = lookup(str(call.input.get("name")))
            results.append({"type": "tool_result", "tool_use_id": call.id, "content": content})
        messages.append({"role": "user", "content": results})
        choice = {"type": "auto" if turn < turns - 2 else "none"}
    return message


if __name__ == "__main__":
    name = MODEL or client.models.list().data[0].id
    print(f"messages  {answer(name, 'What does sorted do?')!r}")
    print("agent")
    last = agent(name, "What does len do?")
    texts = [block.text for block in last.content if block.type == "text"]
    print(f"  {' '.join(texts)!r}")
    print(f"  stop_reason={last.stop_reason} {last.usage.input_tokens=} {last.usage.output_tokens=}")
