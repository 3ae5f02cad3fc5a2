"""Which requests are greedy, and whether two answers have the same text."""

import json
from typing import Any

import pytest

from blade_router.proxy.shadow_text import is_greedy, read_text, same_text
from blade_router.statistics.answer import MAX_KEPT, Answer


@pytest.mark.parametrize(
    ("body", "greedy"),
    [
        ({"temperature": 0}, True),
        ({"temperature": 0.0, "n": 1, "messages": [{"role": "user", "content": "x"}]}, True),
        ({"temperature": 0, "n": 2}, False),
        ({"temperature": 0, "best_of": 3}, False),
        ({"temperature": 0.1}, False),
        ({"temperature": "0"}, False),
        ({"temperature": None}, False),
        ({}, False),
    ],
)
def test_greedy_requests(body: dict[str, Any], greedy: bool) -> None:
    assert is_greedy(json.dumps(body).encode()) is greedy


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b"{" * 5000, b'{"temperature": 0'])
def test_what_cannot_be_read_is_not_greedy(body: bytes) -> None:
    assert not is_greedy(body)


def answer(body: bytes, streamed: bool) -> Answer:
    found = Answer()
    found.keep(body)
    found.succeed(1.0, 2.0, streamed, 3, b"")
    return found


def unary(**choice: Any) -> Answer:
    return answer(json.dumps({"id": "1", "choices": [choice]}).encode(), False)


def stream(*choices: dict[str, Any], end: str = "\n\n") -> Answer:
    events = [f"data: {json.dumps({'id': 'x', 'choices': [each]})}{end}" for each in choices]
    return answer("".join([": a comment\n\n", *events, f"data: [DONE]{end}"]).encode(), True)


def message(*, stream: bool) -> Answer:
    """Of Anthropic's API."""
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
        ({"type": "thinking", "thinking": ""}, [{"thinking": "hm"}, {"signature": "s"}]),
        ({"type": "text", "text": ""}, [{"text": "It"}, {"text": " is"}]),
        (
            {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}},
            [{"partial_json": '{"x"'}, {"partial_json": ":1}"}],
        ),
    ]
    if not stream:
        whole = [{"thinking": "hm", "signature": "s"}, {"text": "It is"}, {"id": "t", "name": "f", "input": {"x": 1}}]
        return answer(
            json.dumps({"content": whole}, separators=(",", ":")).encode().replace(b'"x": 1', b'"x":1'), False
        )
    events: list[dict[str, Any]] = [{"message": {"content": []}}, {"type": "ping"}]
    for block, deltas in blocks:
        events += [{"content_block": block}, *({"delta": delta} for delta in deltas), {"type": "content_block_stop"}]
    events += [{"delta": {"stop_reason": "tool_use"}}, {"type": "message_stop"}]
    return answer("".join([f"event: x\ndata: {json.dumps(each)}\n\n" for each in events]).encode(), True)


def call(id: str, name: str | None, arguments: str) -> dict[str, Any]:
    return {"delta": {"tool_calls": [{"id": id, "index": 0, "function": {"name": name, "arguments": arguments}}]}}


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (unary(message={"role": "assistant", "content": "It is."}), "It is."),
        (unary(text="so"), "so"),
        (unary(message={"content": None, "reasoning_content": "hm"}), "hm"),
        (
            stream({"delta": {"role": "assistant"}}, {"delta": {"content": "It"}}, {"delta": {"content": " is"}}),
            "It is",
        ),
        (stream({"text": "a"}, {"text": "b"}, end="\r\n\r\n"), "ab"),
        (stream(call("c1", "f", ""), call("c1", None, '{"x":1}')), 'f{"x":1}'),
        (message(stream=False), 'hmIt isf{"x":1}'),
        (message(stream=True), 'hmIt isf{"x":1}'),
        (answer(b"data: {\n\n", True), None),
        (answer(b"<html>", False), None),
        (answer(b'{"content": [{"input": {"x":"\xff"}}]}', False), '{"x":"\ufffd"}'),
    ],
)
async def test_texts(found: Answer, text: str | None) -> None:
    assert await read_text(found) == text


async def test_ids_make_no_difference() -> None:
    one, other = stream(call("c1", "f", "{}")), stream(call("c2", "f", "{"), call("c2", None, "}"))
    assert await same_text(one, other) is True
    assert await same_text(one, stream(call("c1", "g", "{}"))) is False
    assert await same_text(one, answer(b"data: x\n\n", True)) is None


async def test_a_stream_and_a_whole_answer_may_have_the_same_text() -> None:
    assert await same_text(stream({"delta": {"content": "x"}}), unary(message={"content": "x"})) is True


async def test_of_long_texts_the_beginnings_are_compared() -> None:
    event = {"delta": {"content": "word "}}
    number = MAX_KEPT // 30
    long, longer = stream(*[event] * number), stream(*[event] * (number + 100))
    assert not long.whole
    assert await same_text(long, longer) is True
    assert await same_text(long, stream(event)) is False, "it ended"
    assert await same_text(stream(event), long) is False
    assert await same_text(long, stream({"delta": {"content": "other"}}, *[event] * number)) is False
