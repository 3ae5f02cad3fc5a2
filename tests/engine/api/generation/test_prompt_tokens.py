"""Prompts become token ids without holding up the event loop."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from engine_support.tiny_text import byte_level_tokenizer, write_tokenizer
from tokenizers import AddedToken

from blade_llm.api.common.errors import ApiError
from blade_llm.api.generation import prompt_tokens
from blade_llm.api.generation.prompt_tokens import completion_prompts, encode_text, infill_prompts
from blade_llm.text.infill import Infill, infill_of
from blade_llm.text.tokenizer import Tokenizer

MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")


class CountingTokenizer(Tokenizer):
    """Records what it encodes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.encoded: list[str] = []

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.encoded.append(text)
        return super().encode(text, add_special_tokens=add_special_tokens)


async def test_others_get_their_turn_between_many_prompts(tmp_path: Path) -> None:
    tokenizer = Tokenizer(write_tokenizer(tmp_path))
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    found = await completion_prompts(["hello"] * 50, tokenizer, 384)
    task.cancel()
    assert found == [tokenizer.encode("hello")] * 50
    assert turns >= 50


async def test_what_cannot_fit_is_not_tokenized(tmp_path: Path) -> None:
    tokenizer = CountingTokenizer(write_tokenizer(tmp_path))
    longest = max(map(len, byte_level_tokenizer().get_vocab()))
    assert tokenizer.longest_token == longest
    text = "h" * (10 * longest + 1)
    for prompt in (text, ["h", text], [40] * 20_001):
        tokenizer.encoded.clear()
        with pytest.raises(ApiError) as caught:
            await completion_prompts(prompt, tokenizer, 384, limit=10, param="input")
        assert (caught.value.detail.code, caught.value.detail.param) == ("context_length_exceeded", "input")
        assert text not in tokenizer.encoded
    (cut,) = await completion_prompts(text, tokenizer, 384)  # to be truncated
    assert len(cut) == len(text)
    assert await encode_text(tokenizer, text[1:], add_special_tokens=False, limit=10) == cut[1:]


async def test_long_texts_do_not_take_the_other_work_its_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Tokenizer(write_tokenizer(tmp_path))

    def slow(self: Tokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
        time.sleep(0.2)
        return []

    monkeypatch.setattr(Tokenizer, "encode", slow)
    tasks = [asyncio.ensure_future(encode_text(tokenizer, "h" * 20_000, add_special_tokens=False)) for _ in range(40)]
    await asyncio.sleep(0)
    async with asyncio.timeout(2):
        assert await asyncio.to_thread(int, "5") == 5
    assert not all(task.done() for task in tasks)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def _infill(folder: Path) -> tuple[Infill, CountingTokenizer]:
    backend = byte_level_tokenizer()
    backend.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
    tokenizer = CountingTokenizer(write_tokenizer(folder, backend))
    infill = infill_of(tokenizer)
    assert infill is not None
    return infill, tokenizer


async def test_a_suffix_is_tokenized_once(tmp_path: Path) -> None:
    infill, tokenizer = _infill(tmp_path)
    options: dict[str, Any] = {"n": 1, "add_special_tokens": False, "limit": 2048}
    found = await infill_prompts(infill, ["hello"] * 3, "world", tokenizer, **options)
    assert tokenizer.encoded.count("world") == 1
    text = tokenizer.decode(found[2], skip_special_tokens=False)
    assert text == "<|fim_prefix|>hello<|fim_suffix|>world<|fim_middle|>"


async def test_too_many_prompts_with_a_suffix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    infill, tokenizer = _infill(tmp_path)
    options: dict[str, Any] = {"add_special_tokens": False, "limit": 2048}
    for prompt, n in (["hello"] * 1025, 1), (["hello"] * 9, 128), ([], 1):
        with pytest.raises(ApiError) as caught:
            await infill_prompts(infill, prompt, "world", tokenizer, n=n, **options)
        assert caught.value.detail.param == "prompt"
    assert not tokenizer.encoded
    monkeypatch.setattr(prompt_tokens, "_MAX_SUFFIXES", 5)
    with pytest.raises(ApiError, match="fewer prompts"):
        await infill_prompts(infill, ["hello"] * 3, "world", tokenizer, n=1, **options)
