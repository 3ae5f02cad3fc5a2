"""The programs of ``examples/clients`` run against the demo model; those whose package is not installed are skipped.

``CLIENTS_PYTHON`` names an interpreter that has them, if it is not that of ``make clients``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_support.server_process import ServerProcess, running_server

EXAMPLES = Path(__file__).parents[3] / "examples"
CLIENTS = Path(os.environ.get("CLIENTS_PYTHON", EXAMPLES.parent / ".venv-clients" / "bin" / "python"))
PROGRAMS = {
    "first_agent": ("openai", ['calls lookup({"name": "len"})', "The built-in len() returns the number of items in a container."]),
    "openai_tools": ("openai", ["with_chat", "with_responses", "calls lookup("]),
    "openai_structured": ("openai", ["chat, pydantic    name=", "responses         name=", "guided_regex"]),
    "anthropic_agent": ("anthropic", ["sorted", "calls lookup(", "tokens in the prompt", "stop_reason=end_turn"]),
    "langchain_chat": (
        "langchain_openai",
        [
            "number of items",
            "logprobs",
            "json_schema name=",
            "function_calling name=",
            "'name': 'lookup'",
            "[256, 256]",
        ],
    ),
    "llamaindex_chat": ("llama_index.llms.openai_like", ["number of items", "structured name=", "[256, 256]"]),
    "langchain_rag": ("langchain_community", ["nearest  What does sorted do?", "number of items", "ascending order"]),
    "llamaindex_rag": (
        "llama_index.llms.openai_like",
        ["nearest  What does sorted do? sorted.txt", "number of items", "ascending order"],
    ),
    "pydantic_ai_agent": ("pydantic_ai", ["OpenAIResponsesModel", "number of items", "typed  name="]),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("examples")
    flags = ("--load_format", "auto")
    with running_server(folder, EXAMPLES / "demo_model" / "model", *flags, engine="real") as process:
        yield process


def _python(package: str) -> str | None:
    """An interpreter that has ``package``: the clients' own (``make clients``), or this one."""
    found = (python for python in (str(CLIENTS), sys.executable) if Path(python).exists() and _has(python, package))
    return next(found, None)


def _has(python: str, package: str) -> bool:
    return subprocess.run([python, "-c", f"import {package}"], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_example_runs(server: ServerProcess, name: str) -> None:
    package, shown = PROGRAMS[name]
    python = _python(package)
    if python is None:
        pytest.skip(f"{package} is not installed; make clients")
    found = subprocess.run(
        [python, str(EXAMPLES / "clients" / f"{name}.py")],
        env={**os.environ, "BASE_URL": f"{server.url}/v1", "NO_PROXY": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert [text for text in shown if text not in found.stdout] == [], found.stdout


def test_every_example_is_listed() -> None:
    programs = {path.stem for path in (EXAMPLES / "clients").glob("*.py")} - {"server", "documents"}
    assert programs == PROGRAMS.keys()
    readme = (EXAMPLES / "clients" / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}.py`" in readme for name in programs)
