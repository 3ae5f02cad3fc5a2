"""The scripted model that ``anthropic_program.py`` talks to, and running programs of Anthropic's client."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from clients_support.environments import python_of
from engine_support.fake_engine import write_script
from engine_support.tool_models import QWEN3, write_tool_model

PROGRAM = Path(__file__).with_name("anthropic_program.py")
PICTURES = Path(__file__).with_name("anthropic_pictures.py")


def _call(city: str) -> str:
    return f'<tool_call>\n{{"name": "weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>'


def write_agent_model(folder: Path) -> Path:
    """A model that looks up the weather of two places before it answers."""
    write_tool_model(folder, QWEN3)
    write_script(
        folder,
        ("Oslo", f"<think>\nI must look.\n</think>\n\nLet me see.\n{_call('Oslo')}\n{_call('Rome')}"),
        ("degrees", "Cold everywhere."),
        ("cold", "It is cold."),
    )
    return folder


def run_program(
    url: str, key: str = "none", program: Path = PROGRAM, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(
        [str(python_of("core")), str(program)],
        env={**os.environ, "URL": url, "KEY": key, "NO_PROXY": "127.0.0.1", **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
