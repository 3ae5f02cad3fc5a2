"""Prompts as token ids: text is tokenized (a long one off the event loop), ids are checked.

What cannot fit into the context however it is tokenized is refused before that is done.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from blade_llm.api.common.errors import ApiError, bad_request, context_exceeded
from blade_llm.api.common.fields import integral
from blade_llm.text.errors import UnreadableTextError
from blade_llm.text.infill import Infill
from blade_llm.text.tokenizer import Tokenizer

_LONG_TEXT: Final = 20_000
"""Characters from which tokenizing moves to a thread, as it would hold up others; the library releases the GIL."""
LONG_IDS: Final = 20_000
"""Token ids from which a loop over them would."""
MAX_CHOICES: Final = 1024
"""Prompts times ``n``: every choice is an engine request of its own."""
_MAX_SUFFIXES: Final = 1_000_000
"""Tokens of a suffix, times the prompts it is joined to: a small request could make a huge prompt."""
_POOL: Final = ThreadPoolExecutor(2, "tokenize")
"""A pool of its own: a text of megabytes takes seconds, and others need the event loop's threads."""
_Result = TypeVar("_Result")


async def in_tokenizer_thread(function: Callable[..., _Result], *arguments: Any, **options: Any) -> _Result:
    """Run a call that takes the tokenizer long."""
    return await asyncio.get_running_loop().run_in_executor(_POOL, functools.partial(function, *arguments, **options))


async def encode_text(
    tokenizer: Tokenizer, text: str, *, add_special_tokens: bool, limit: int | None = None, param: str = "prompt"
) -> list[int]:
    """Token ids of ``text``.

    Args:
        limit: tokens the context holds; None: what does not fit will be cut off.
        param: the field the text came in.

    Raises :class:`ApiError` 400 for a text that surely has more than ``limit`` tokens, or that the
    tokenizer gives up on.
    """
    if limit is not None and len(text) > limit * tokenizer.longest_token:
        raise too_long(f"{len(text)} characters", limit, param)
    try:
        if len(text) < _LONG_TEXT:
            return tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return await in_tokenizer_thread(tokenizer.encode, text, add_special_tokens=add_special_tokens)
    except UnreadableTextError as error:
        raise bad_request(f"{param}: {error}", param) from None


def too_long(length: str, limit: int, param: str) -> ApiError:
    """A 400 for a prompt whose ``length`` alone says that the context cannot hold it."""
    return context_exceeded(limit, f"your {param} has {length}. Please reduce the length of the {param}", param)


async def completion_prompts(
    prompt: str | list[Any],
    tokenizer: Tokenizer,
    vocab_size: int,
    *,
    n: int = 1,
    add_special_tokens: bool = True,
    param: str = "prompt",
    most: int = MAX_CHOICES,
    limit: int | None = None,
) -> list[list[int]]:
    """Token ids of a request's ``prompt``: text, ids, or a list of either. Raises :class:`ApiError` 400.

    Args:
        n: outputs for each prompt; both together are at most ``most``.
        param: the field's name.
        limit: see :func:`encode_text`.
    """
    found = []
    for part in _parts(prompt, n, param, most):
        if isinstance(part, str):
            ids = await encode_text(tokenizer, part, add_special_tokens=add_special_tokens, limit=limit, param=param)
        else:
            ids = await long_ids(part, vocab_size, param, limit)
        await asyncio.sleep(0)  # many short prompts hold up others as one long one does
        if not ids:
            raise bad_request(f"{param} must not be empty", param)
        found.append(ids)
    return found


def _parts(prompt: str | list[Any], n: int, param: str, most: int) -> list[Any]:
    """The single prompts, not too many. Raises :class:`ApiError` 400."""
    parts: list[Any] = [prompt] if isinstance(prompt, str) or (prompt and _is_number(prompt[0])) else prompt
    if not parts:
        raise bad_request(f"{param} must not be empty", param)
    if len(parts) * n > most:
        with_n = f" with n {n}" if n > 1 else ""
        raise bad_request(f"{param} holds {len(parts)} prompts; send at most {most // n}{with_n} in one request", param)
    return parts


async def infill_prompts(
    infill: Infill,
    prompt: str | list[Any],
    suffix: str,
    tokenizer: Tokenizer,
    *,
    n: int,
    add_special_tokens: bool,
    limit: int,
) -> list[list[int]]:
    """``prompt`` and ``suffix`` in the format the model learned, as token ids; see :func:`completion_prompts`."""
    parts = _parts(prompt, n, "prompt", MAX_CHOICES)
    if not all(isinstance(part, str) for part in parts):
        raise bad_request("suffix needs a prompt that is text", "suffix")
    after = await encode_text(tokenizer, suffix, add_special_tokens=False, limit=limit, param="suffix")
    if len(parts) * len(after) > _MAX_SUFFIXES:
        message = f"suffix has {len(after)} tokens, too many for {len(parts)} prompts at once; send fewer prompts"
        raise bad_request(message, "suffix")
    found = []
    for part in parts:
        before = await encode_text(tokenizer, part, add_special_tokens=False, limit=limit)
        found.append(infill.join(before, after, add_special_tokens=add_special_tokens))
        await asyncio.sleep(0)
    return found


async def long_ids(value: Any, vocab_size: int, param: str, limit: int | None) -> list[int]:
    """:func:`checked_ids`, off the event loop for many, and at most ``limit`` of them."""
    if not isinstance(value, list) or len(value) < LONG_IDS:
        return checked_ids(value, vocab_size, param)
    if limit is not None and len(value) > limit:
        raise too_long(f"{len(value)} tokens", limit, param)
    return await asyncio.to_thread(checked_ids, value, vocab_size, param)


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


def truncated(token_ids: list[int], keep: int | None, room: int, side: str | None = None) -> list[int]:
    """The last ``keep`` of them, or the first where ``side`` is ``right`` (-1: ``room``, what the context leaves; None:
    all). Raises :class:`ApiError` 400."""
    if keep is None:
        return token_ids
    if keep == 0:
        raise bad_request("truncate_prompt_tokens must be at least 1, or -1", "truncate_prompt_tokens")
    keep = max(room, 1) if keep == -1 else keep
    return token_ids[:keep] if side == "right" else token_ids[-keep:]
