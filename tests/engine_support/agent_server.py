"""A scripted server with room for the prompts of coding agents, which are tens of thousands of characters."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine_support.fake_engine import write_script
from engine_support.server_process import ServerProcess, running_server
from engine_support.tool_models import QWEN3, write_tool_model

CONTEXT = 262_144
"""Tokens, each a character."""


def call(name: str, arguments: Any) -> str:
    """A call as the model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@contextlib.contextmanager
def agent_server(folder: Path, *script: tuple[str, str]) -> Iterator[ServerProcess]:
    """Serves as the model ``tools``; of ``script`` the entry speaks whose mark stands last in the prompt."""
    model = write_tool_model(folder / "tools", QWEN3, max_position_embeddings=CONTEXT)
    write_script(model, *script)
    flags = ("--max_model_len", str(CONTEXT), "--max_kv_blocks", str(4 * CONTEXT // 16))
    with running_server(folder / "server", model, *flags, engine="scripted") as server:
        yield server
