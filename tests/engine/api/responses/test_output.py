"""Items of a response: reasoning, text and calls, in whatever pieces the output comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_support.openai_shapes import problems
from engine_support.openai_streams import check_response_stream
from openai.types.responses import ResponseOutputItem

from blade_llm.api.generation.result import ChoiceUpdate, TokenEntry
from blade_llm.api.responses.output import Output
from blade_llm.sampling.parameters import TokenLogprobs
from blade_llm.text.output_parser import OutputParsing
from blade_llm.text.reasoning import QWEN3
from blade_llm.text.tokenizer import Tokenizer
from blade_llm.text.tool_parsers import HERMES

PARSING = OutputParsing(calls=HERMES, names=frozenset({"add"}), reasoning=QWEN3)
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2]}}\n</tool_call>'
OUTPUT = f"<think>\nwell…\n</think>\n\nlet me see\n{CALL}\n{CALL}"


def _run(text: str, size: int, reason: str, text_model: Path) -> list[dict[str, Any]]:
    """The events of ``text`` that comes ``size`` characters at a time, as a whole stream."""
    output = Output("7", PARSING.parser(), Tokenizer(text_model), with_logprobs=False)
    pieces = [text[start : start + size] for start in range(0, len(text), size)] or [""]
    events = [
        event
        for number, piece in enumerate(pieces, 1)
        for event in output.add(ChoiceUpdate(0, piece, [], reason if number == len(pieces) else None))
    ]
    return [*events, {"items": output.items}]


def _checked(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items, once their events are what a stream may have."""
    *events, last = events
    base = {"id": "resp_1", "created_at": 1, "error": None, "incomplete_details": None, "instructions": None}
    base |= {"metadata": {}, "model": "m", "object": "response", "parallel_tool_calls": True, "temperature": 1}
    base |= {"tool_choice": "auto", "tools": [], "top_p": 1, "usage": None}
    begun = {**base, "status": "in_progress", "output": []}
    stream = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        *events,
        {"type": "response.failed", "response": {**base, "status": "failed", "output": last["items"]}},
    ]
    items: list[dict[str, Any]] = check_response_stream(
        [{**event, "sequence_number": number} for number, event in enumerate(stream)]
    )["output"]
    assert [found for item in items for found in problems(item, ResponseOutputItem)] == []
    return items


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_every_kind_of_item(text_model: Path, size: int) -> None:
    thought, said, *calls = _checked(_run(OUTPUT, size, "stop", text_model))
    assert (thought["type"], thought["content"][0]["text"]) == ("reasoning", "well…")
    assert (said["type"], said["content"][0]["text"]) == ("message", "let me see")
    assert [(call["name"], call["arguments"]) for call in calls] == [("add", '{"a": 1, "b": [2]}')] * 2
    assert len({call["call_id"] for call in calls}) == 2
    assert {item["status"] for item in (thought, said, *calls)} == {"completed"}
    assert len({item["id"] for item in (thought, said, *calls)}) == 4


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    ("text", "kind", "statuses"),
    [
        ("<think>\nwell", "reasoning", ["incomplete"]),
        ("<think>\nwell</think>so", "message", ["completed", "incomplete"]),
        (CALL[:50], "function_call", ["incomplete"]),
        (CALL, "function_call", ["completed"]),
        ("", "message", ["incomplete"]),
    ],
)
def test_the_item_that_was_cut_short(text_model: Path, text: str, kind: str, statuses: list[str], size: int) -> None:
    items = _checked(_run(text, size, "length", text_model))
    assert items[-1]["type"] == kind
    assert [item["status"] for item in items] == statuses


def test_logprobs_belong_to_text_alone(text_model: Path) -> None:
    tokenizer = Tokenizer(text_model)
    output = Output("7", PARSING.parser(), tokenizer, with_logprobs=True)
    for character in OUTPUT:
        entries = [TokenEntry(token, TokenLogprobs(-0.5), 0, "") for token in tokenizer.encode(character)]
        output.add(ChoiceUpdate(0, character, entries))
    output.add(ChoiceUpdate(0, "", [], "stop"))
    text = "".join(entry["token"] for entry in output.items[1]["content"][0]["logprobs"])
    assert text.rstrip() == "let me see"
