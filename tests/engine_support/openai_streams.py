"""Whether the events of a stream come in the order OpenAI documents, and say the same as the whole response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
import msgspec
from engine_support.openai_shapes import problems
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent

Event = dict[str, Any]


def read_events(response: httpx.Response) -> list[tuple[str, str]]:
    """(event, data) of each; checks the framing."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    *blocks, end = response.text.split("\n\n")
    assert end == ""
    found = []
    for block in blocks:
        lines = block.split("\n")
        name = lines.pop(0).removeprefix("event: ") if lines[0].startswith("event: ") else ""
        (line,) = lines
        assert line.startswith("data: ")
        found.append((name, line.removeprefix("data: ")))
    return found


def chunks_of(response: httpx.Response) -> list[Event]:
    """The chunks of a chat's or a completion's stream."""
    *events, end = read_events(response)
    assert end == ("", "[DONE]")
    assert all(name == "" for name, _ in events)
    return [msgspec.json.decode(data) for _, data in events]


def check_chat_stream(chunks: Sequence[Event], *, n: int = 1, usage: bool = False) -> None:
    """Per choice: the role first and once, then text, then one finish reason; at the end the usage, if requested."""
    _check_heads(chunks, ChatCompletionChunk, usage)
    for index in range(n):
        choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert choices[0]["delta"]["role"] == "assistant"
        assert not any("role" in choice["delta"] for choice in choices[1:])
        reasons = [choice["finish_reason"] for choice in choices]
        assert reasons[-1] is not None
        assert set(reasons[:-1]) <= {None}


def check_completion_stream(chunks: Sequence[Event], *, n: int = 1, usage: bool = False) -> None:
    """Per choice: text, the last with a finish reason; at the end the usage, if requested."""
    _check_heads(chunks, Completion, usage)
    for index in range(n):
        reasons = [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert reasons[-1] is not None
        assert set(reasons[:-1]) <= {None}


def _check_heads(chunks: Sequence[Event], kind: Any, usage: bool) -> None:
    for chunk in chunks:
        # For a completion's chunks, whose finish reason may be null, the package has no type.
        found = [one for one in problems(chunk, kind) if kind is not Completion or ".finish_reason: None" not in one]
        assert found == []
        assert ("usage" in chunk) == usage
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    with_usage = [chunk for chunk in chunks if chunk.get("usage") is not None]
    if usage:
        assert with_usage == [chunks[-1]]
        assert chunks[-1]["choices"] == []
    else:
        assert with_usage == []
    assert all(len(chunk["choices"]) >= 1 for chunk in chunks[: -1 if usage else None])


def response_events(response: httpx.Response) -> list[Event]:
    """The events of a response's stream; each has its type on the ``event:`` line as well."""
    found = []
    for name, data in read_events(response):
        event = msgspec.json.decode(data)
        assert event["type"] == name
        found.append(event)
    return found


def check_response_stream(events: Sequence[Event]) -> Event:
    """The documented order, and that deltas join to what is said at the end. Returns the final response."""
    for event in events:
        assert problems(event, ResponseStreamEvent) == []
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    created, in_progress, *middle, end = events
    assert created["type"] == "response.created"
    assert in_progress["type"] == "response.in_progress"
    assert created["response"]["status"] == in_progress["response"]["status"] == "in_progress"
    assert created["response"]["output"] == []
    final: Event = end["response"]
    assert end["type"] == f"response.{final['status']}"
    assert final["id"] == created["response"]["id"]
    assert (final["usage"] is not None) == (final["status"] != "failed")
    items: list[Event] = []
    while middle:
        size = next(i for i, event in enumerate(middle) if event["type"] == "response.output_item.done") + 1
        items.append(_check_item(middle[:size], len(items)))
        middle = middle[size:]
    assert final["output"] == items
    return final


def _check_item(events: Sequence[Event], index: int) -> Event:
    added, *inner, done = events
    item: Event = done["item"]
    assert added["type"] == "response.output_item.added"
    assert added["item"].get("status", "in_progress") == "in_progress"
    assert added["item"]["id"] == item["id"]
    assert {event["output_index"] for event in events} == {index}
    assert {event["item_id"] for event in inner} == {item["id"]}
    kinds = [event["type"].removeprefix("response.") for event in inner]
    if item["type"] == "function_call":
        assert kinds == ["function_call_arguments.delta"] * (len(kinds) - 1) + ["function_call_arguments.done"]
        assert added["item"]["arguments"] == ""
        assert added["item"]["name"] == item["name"]
        assert "".join(event["delta"] for event in inner[:-1]) == inner[-1]["arguments"] == item["arguments"]
        return item
    if item["type"] == "custom_tool_call":
        assert kinds == ["custom_tool_call_input.delta"] * (len(kinds) - 1) + ["custom_tool_call_input.done"]
        assert (added["item"]["input"], added["item"]["name"]) == ("", item["name"])
        assert "".join(event["delta"] for event in inner[:-1]) == inner[-1]["input"] == item["input"]
        return item
    name = {"message": "output_text", "reasoning": "reasoning_text"}[item["type"]]
    deltas = [f"{name}.delta"] * (len(kinds) - 3)
    assert kinds == ["content_part.added", *deltas, f"{name}.done", "content_part.done"]
    (part,) = item["content"]
    assert inner[-1]["part"] == part
    assert "".join(event["delta"] for event in inner[1:-2]) == inner[-2]["text"] == part["text"]
    return item
