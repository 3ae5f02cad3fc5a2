"""Prompts become token ids without holding up the event loop."""

from __future__ import annotations

import asyncio
from pathlib import Path

from engine_support.tiny_text import write_tokenizer

from blade_llm.api.prompts import completion_prompts
from blade_llm.text.tokenizer import Tokenizer


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
