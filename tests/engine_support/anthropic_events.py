"""The events of a streamed message as Anthropic documents their order, and the message they make.

https://docs.anthropic.com/en/docs/build-with-claude/streaming
"""

from __future__ import annotations

import json
from typing import Any

_DELTAS = {
    "text": {"text_delta": "text"},
    "thinking": {"thinking_delta": "thinking", "signature_delta": "signature"},
    "tool_use": {"input_json_delta": "partial_json"},
}


def events_of(stream: str) -> list[dict[str, Any]]:
    """The data of each event; its name is the data's ``type``."""
    found = []
    for event in stream.split("\n\n")[:-1]:
        if event.startswith(":"):
            continue
        name, data = event.split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        found.append(value)
    return found


def message_of(stream: str) -> dict[str, Any]:
    """The whole message. Every event is where it belongs."""
    first, *events = events_of(stream)
    assert first["type"] == "message_start"
    message: dict[str, Any] = first["message"]
    assert (message["content"], message["stop_reason"]) == ([], None)
    last = [event["type"] for event in events[-2:]]
    assert last == ["message_delta", "message_stop"]
    assert events[1] == {"type": "ping"}, "after the first block has begun"
    pieces = ""
    for event in events[:-2]:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
                pieces = ""
            case "content_block_delta":
                block, delta = message["content"][-1], event["delta"]
                assert event["index"] == len(message["content"]) - 1
                field = _DELTAS[block["type"]][delta["type"]]
                if field == "partial_json":
                    pieces += delta[field]
                else:
                    block[field] += delta[field]
            case "content_block_stop":
                assert event["index"] == len(message["content"]) - 1
                if message["content"][-1]["type"] == "tool_use":
                    message["content"][-1]["input"] = json.loads(pieces) if pieces else {}
            case kind:
                assert kind == "ping"
    assert sum(event["type"] == "content_block_stop" for event in events) == len(message["content"])
    message |= events[-2]["delta"]
    message["usage"] |= events[-2]["usage"]
    return message
