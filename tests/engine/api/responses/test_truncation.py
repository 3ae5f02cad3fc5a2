"""Which messages are left out of a conversation that is too long."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from blade_llm.api.common.errors import ApiError, bad_request
from blade_llm.api.generation.prompt import Prompt
from blade_llm.api.responses.truncation import fitting
from blade_llm.sampling.parameters import SamplingParams

SYSTEM = {"role": "system", "content": "s"}
CONTEXT = 80


def _conversation(turns: int) -> list[dict[str, Any]]:
    """Ten tokens a message: the numbers of the turns."""
    return [
        {"role": role, "content": f"{turn}"}
        for turn in range(turns)
        for role in ("user", "assistant", "tool", "assistant")
    ]


def _fit(messages: list[dict[str, Any]], length: int | None = 10) -> list[dict[str, Any]]:
    made: list[list[dict[str, Any]]] = []

    async def make(kept: list[dict[str, Any]]) -> Prompt:
        if len(kept) * 10 >= CONTEXT:
            raise bad_request("too long", "messages", "context_length_exceeded")
        made.append(kept)
        return Prompt([len(made) - 1] * len(kept) * 10, SamplingParams())

    prompt = asyncio.run(fitting(messages, make, CONTEXT, length))
    return made[prompt.token_ids[0]]


def test_a_conversation_that_fits_is_left_alone() -> None:
    messages = [SYSTEM, *_conversation(1)]
    assert _fit(messages) == messages


def test_the_oldest_are_left_out_and_system_messages_stay() -> None:
    messages = [SYSTEM, SYSTEM, *_conversation(5)]
    assert _fit(messages) == [SYSTEM, SYSTEM, *messages[-4:]]


def test_a_turn_that_is_too_long_is_cut_at_a_call() -> None:
    messages = [SYSTEM, *_conversation(1), *[{"role": role} for role in ("assistant", "tool")] * 5]
    assert _fit(messages) == [SYSTEM, *messages[-6:]]


def test_no_result_of_a_call_begins_it() -> None:
    for size in range(8, 20):
        messages = [SYSTEM, *_conversation(5)[:size]]
        kept = _fit(messages, 20)
        assert kept[1]["role"] == "user"
        assert kept[1:] == messages[len(messages) - len(kept) + 1 :]


def test_no_images_of_a_result_begin_it() -> None:
    """They stand in a message of the user right behind it."""
    turn: list[dict[str, Any]] = [{"role": "user", "content": "x"}, {"role": "assistant"}, {"role": "tool"}]
    shown: dict[str, Any] = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
    long = [*turn, shown, *[{"role": "assistant", "content": ""}] * 3]
    assert _fit([SYSTEM, *long, *turn], 20) == [SYSTEM, *turn]
    assert _fit([SYSTEM, *long], 20) == [SYSTEM, *long[4:]], "the last turn alone is too long"
    other = {"role": "user", "content": "y"}
    assert _fit([SYSTEM, *turn, other, *long[4:]], 20) == [SYSTEM, other, *long[4:]]


def test_room_for_the_output() -> None:
    messages = _conversation(5)
    assert [len(_fit(messages, length)) for length in (10, 40, 50)] == [4, 4, 3]
    assert len(_fit(messages, None)) == 4


def test_what_never_fits() -> None:
    with pytest.raises(ApiError, match="too long"):
        _fit([SYSTEM] * 8 + _conversation(1))


def test_other_errors_are_those_of_the_request() -> None:
    async def make(kept: list[dict[str, Any]]) -> Prompt:
        raise bad_request("wrong", "tools")

    with pytest.raises(ApiError, match="wrong"):
        asyncio.run(fitting(_conversation(2), make, CONTEXT, None))
