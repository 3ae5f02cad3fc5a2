"""The scripted model that ``anthropic_program.py`` talks to, and running that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from engine_support.fake_engine import write_script
from engine_support.tool_models import QWEN3, write_tool_model

PROGRAM = Path(__file__).with_name("anthropic_program.py")
CLIENTS = Path(os.environ.get("CLIENTS_PYTHON", Path(__file__).parents[2] / ".venv-clients" / "bin" / "python"))


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


def python_with_client() -> str | None:
    """An interpreter that has Anthropic's client: that of ``make clients``, or this one."""
    for python in (str(CLIENTS), sys.executable):
        if (
            Path(python).exists()
            and not subprocess.run([python, "-c", "import anthropic"], capture_output=True, check=False).returncode
        ):
            return python
    return None


def run_program(python: str, url: str, key: str = "none") -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(
        [python, str(PROGRAM)],
        env={**os.environ, "URL": url, "KEY": key, "NO_PROXY": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
