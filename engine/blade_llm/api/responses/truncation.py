"""``truncation: auto``: the oldest messages of a conversation are left out until its prompt fits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from blade_llm.api.common.errors import ApiError
from blade_llm.api.generation.prompt import Prompt

_ROOM: Final = 8
"""Where the request names no length, a prompt that was cut leaves this part of the context to the output."""

Messages = list[dict[str, Any]]


async def fitting(
    messages: Messages, make: Callable[[Messages], Awaitable[Prompt]], max_model_len: int, length: int | None
) -> Prompt:
    """The prompt that ``make`` makes of all messages, or of as many of the last ones as fit.

    System messages at the beginning stay, and no result of a call stays without the call, nor its images. What is left
    begins with a message of the user, as many templates want it, unless the last turn alone is too long. The number to
    leave out is found by bisection, as a shorter conversation makes no longer prompt.

    Args:
        length: tokens that the output may have; None: as many as fit.

    Raises :class:`ApiError` 400 where not even the last turn fits, or for anything else that is wrong.
    """
    try:
        return await make(messages)
    except ApiError as error:
        if error.detail.code != "context_length_exceeded":
            raise
        refusal = error
    most = max_model_len - (length or max_model_len // _ROOM)
    system = next((index for index, message in enumerate(messages) if message["role"] != "system"), len(messages))
    roles = [message["role"] for message in messages]
    for beginnings in (("user",), ("assistant", "system")):
        cuts = [
            index
            for index in range(system + 1, len(messages))
            if roles[index] in beginnings and not _may_be_of_result(messages, index)
        ]
        if (found := await _longest(messages, system, cuts, make, most)) is not None:
            return found
    raise refusal


async def _longest(
    messages: Messages, system: int, cuts: Sequence[int], make: Callable[[Messages], Awaitable[Prompt]], most: int
) -> Prompt | None:
    """The prompt of the first ``system`` messages and of those from the first of the ``cuts`` on that lets it fit."""
    found: Prompt | None = None
    first, last = 0, len(cuts)
    while first < last:
        middle = (first + last) // 2
        prompt = await _within([*messages[:system], *messages[cuts[middle] :]], make, most)
        if prompt is None:
            first = middle + 1
        else:
            found, last = prompt, middle
    return found


def _may_be_of_result(messages: Messages, index: int) -> bool:
    """Whether it may be the message with a result's images, which follows the result."""
    return messages[index - 1]["role"] == "tool" and isinstance(messages[index].get("content"), list)


async def _within(messages: Messages, make: Callable[[Messages], Awaitable[Prompt]], most: int) -> Prompt | None:
    try:
        prompt = await make(messages)
    except ApiError as error:
        if error.detail.code != "context_length_exceeded":
            raise
        return None
    return prompt if len(prompt.token_ids) <= most else None
