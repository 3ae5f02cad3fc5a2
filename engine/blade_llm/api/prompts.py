"""Prompts as token ids: text is tokenized (a long one off the event loop), ids are checked."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from blade_llm.api.errors import bad_request
from blade_llm.api.fields import integral
from blade_llm.text.infill import Infill
from blade_llm.text.tokenizer import Tokenizer

_LONG_TEXT: Final = 20_000
"""Characters from which tokenizing would hold up other requests' tokens; the library releases the GIL."""
MAX_CHOICES: Final = 1024
"""Prompts times ``n``: every choice is an engine request of its own."""


async def encode_text(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
    """Token ids of ``text``."""
    if len(text) < _LONG_TEXT:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    return await asyncio.to_thread(tokenizer.encode, text, add_special_tokens=add_special_tokens)


async def completion_prompts(
    prompt: str | list[Any],
    tokenizer: Tokenizer,
    vocab_size: int,
    *,
    n: int = 1,
    add_special_tokens: bool = True,
    param: str = "prompt",
    most: int = MAX_CHOICES,
) -> list[list[int]]:
    """Token ids of a request's ``prompt``: text, ids, or a list of either. Raises :class:`ApiError` 400.

    Args:
        n: answers to each prompt; both together are at most ``most``.
        param: the field's name.
    """
    parts: list[Any] = [prompt] if isinstance(prompt, str) or (prompt and _is_number(prompt[0])) else prompt
    if not parts:
        raise bad_request(f"{param} must not be empty", param)
    if len(parts) * n > most:
        with_n = f" with n {n}" if n > 1 else ""
        raise bad_request(f"{param} holds {len(parts)} prompts; send at most {most // n}{with_n} in one request", param)
    found = []
    for part in parts:
        if isinstance(part, str):
            ids = await encode_text(tokenizer, part, add_special_tokens=add_special_tokens)
            await asyncio.sleep(0)  # many short texts hold up others as one long one does
        else:
            ids = checked_ids(part, vocab_size, param)
        if not ids:
            raise bad_request(f"{param} must not be empty", param)
        found.append(ids)
    return found


def infill_prompts(
    infill: Infill, prompt: str | list[Any], suffix: str, *, add_special_tokens: bool
) -> list[list[int]]:
    """``prompt`` and ``suffix`` in the format the model learned, as token ids. Raises :class:`ApiError` 400."""
    parts = [prompt] if isinstance(prompt, str) else prompt
    if not all(isinstance(part, str) for part in parts):
        raise bad_request("suffix needs a prompt that is text", "suffix")
    return [infill.encode(part, suffix, add_special_tokens=add_special_tokens) for part in parts]


def checked_ids(value: Any, vocab_size: int, param: str) -> list[int]:
    """``value``, a list of the model's token ids. Raises :class:`ApiError` 400."""
    if isinstance(value, list) and any(type(token_id) is float for token_id in value):
        value = integral(value)
    if not isinstance(value, list) or not all(type(token_id) is int for token_id in value):
        raise bad_request(f"{param} must be text, a list of token ids, or a list of either", param)
    if wrong := [token_id for token_id in value if not 0 <= token_id < vocab_size]:
        raise bad_request(f"{param}: token id {wrong[0]} is not between 0 and {vocab_size - 1}", param)
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def truncated(token_ids: list[int], keep: int | None, room: int) -> list[int]:
    """The last ``keep`` of them (-1: ``room``, what the context leaves; None: all). Raises :class:`ApiError` 400."""
    if keep is None:
        return token_ids
    if keep == 0:
        raise bad_request("truncate_prompt_tokens must be at least 1, or -1", "truncate_prompt_tokens")
    return token_ids[-(max(room, 1) if keep == -1 else keep) :]
