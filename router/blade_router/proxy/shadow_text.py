"""The texts of two answers to a greedy request: whether they are the same.

Apart from what is compiled, as its types cannot be.
"""

import asyncio
from typing import Final

import msgspec

from blade_router.statistics.answer import Answer

_EVENTS: Final = 64
"""Events that are read before other tasks get their turn."""


class _Sampling(msgspec.Struct, frozen=True):
    """What makes answers to equal requests differ."""

    temperature: float | None = None
    n: int | None = None
    best_of: int | None = None


class _Function(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct, frozen=True):
    """Its id is drawn at random."""

    function: _Function | None = None


class _Message(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct, frozen=True):
    text: str | None = None
    delta: _Message | None = None
    message: _Message | None = None


class _Block(msgspec.Struct, frozen=True):
    """Of a message of ``/v1/messages``, or what one of its events adds to it. Ids and signatures say nothing."""

    text: str | None = None
    thinking: str | None = None
    name: str | None = None
    input: msgspec.Raw = msgspec.Raw(b"{}")
    partial_json: str | None = None


class _Body(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    content: list[_Block] = []
    content_block: _Block | None = None
    delta: _Block | None = None


_decode_sampling = msgspec.json.Decoder(_Sampling).decode
_decode_body = msgspec.json.Decoder(_Body).decode


def is_greedy(body: bytes) -> bool:
    """The request says that of equal engines it gets equal answers. What an engine's defaults say is not known."""
    try:
        sampling = _decode_sampling(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return sampling.temperature == 0 and sampling.n in (None, 1) and sampling.best_of in (None, 1)


async def same_text(one: Answer, other: Answer) -> bool | None:
    """Whether both texts are the same, as far as they are kept; None: they cannot be read. Other tasks get turns."""
    first, second = await read_text(one), await read_text(other)
    if first is None or second is None:
        return None
    if one.whole and other.whole:
        return first == second
    return (not one.whole and second.startswith(first)) or (not other.whole and first.startswith(second))


async def read_text(answer: Answer) -> str | None:
    """All that a model has said in an answer; None where that cannot be read."""
    kept = answer.kept
    if not answer.streamed:
        return _text_of(kept)
    parts: list[str] = []
    for number, line in enumerate(kept.split(b"\n")):
        if number % (2 * _EVENTS) == 0:
            await asyncio.sleep(0)
        if not line.startswith(b"data:") or line.startswith(b"data: [DONE]"):
            continue
        text = _text_of(line[5:])
        if text is not None:
            parts.append(text)
        elif answer.whole:
            return None  # otherwise it is the one that was cut off
    return "".join(parts)


def _text_of(data: bytes) -> str | None:
    try:
        body = _decode_body(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    blocks = [*body.content, *(each for each in (body.content_block, body.delta) if each is not None)]
    return "".join((*map(_text, body.choices), *map(_text_of_block, blocks)))


def _text_of_block(block: _Block) -> str:
    arguments = bytes(block.input).decode(errors="replace")  # what is skipped is not checked
    found = (block.thinking, block.text, block.name, block.partial_json, "" if arguments == "{}" else arguments)
    return "".join(each for each in found if each)


def _text(choice: _Choice) -> str:
    message = choice.delta or choice.message
    if message is None:
        return choice.text or ""
    calls = [call.function for call in message.tool_calls or () if call.function is not None]
    called = [f"{each.name or ''}{each.arguments or ''}" for each in calls]
    return "".join((message.reasoning_content or "", message.content or "", *called))
