"""Prompts as token ids: text is tokenized (a long one off the event loop), ids are checked."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from blade_llm.api.errors import bad_request
from blade_llm.text.tokenizer import Tokenizer

_LONG_TEXT: Final = 20_000
"""Characters from which tokenizing would hold up other requests' tokens; the library releases the GIL."""
MAX_CHOICES: Final = 1024
"""Prompts times ``n``: every choice is an engine request with a copy of its prompt."""


async def encode_text(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
    """Token ids of ``text``."""
    if len(text) < _LONG_TEXT:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    return await asyncio.to_thread(tokenizer.encode, text, add_special_tokens=add_special_tokens)


async def completion_prompts(
    prompt: str | list[Any], tokenizer: Tokenizer, vocab_size: int, *, n: int = 1
) -> list[list[int]]:
    """Token ids of a completion request's ``prompt``: text, ids, or a list of either. Raises :class:`ApiError` 400."""
    parts: list[Any] = [prompt] if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)) else prompt
    if not parts:
        raise bad_request("prompt must not be empty", "prompt")
    if len(parts) * n > MAX_CHOICES:
        with_n = f" with n {n}" if n > 1 else ""
        most = MAX_CHOICES // n
        raise bad_request(f"prompt holds {len(parts)} prompts; send at most {most}{with_n} in one request", "prompt")
    found = []
    for part in parts:
        if isinstance(part, str):
            ids = await encode_text(tokenizer, part, add_special_tokens=True)
            await asyncio.sleep(0)  # many short texts hold up others as one long one does
        else:
            ids = _checked_ids(part, vocab_size)
        if not ids:
            raise bad_request("prompt must not be empty", "prompt")
        found.append(ids)
    return found


def _checked_ids(value: Any, vocab_size: int) -> list[int]:
    if not isinstance(value, list) or not all(type(token_id) is int for token_id in value):
        raise bad_request("prompt must be text, a list of token ids, or a list of either", "prompt")
    if wrong := [token_id for token_id in value if not 0 <= token_id < vocab_size]:
        raise bad_request(f"prompt: token id {wrong[0]} is not between 0 and {vocab_size - 1}", "prompt")
    return value
