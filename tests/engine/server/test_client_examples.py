"""The programs of ``examples/clients`` run against the demo model."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients_support.environments import REQUIREMENTS, python_of
from engine_support.server_process import ServerProcess, running_server

EXAMPLES = Path(__file__).parents[3] / "examples"
PROGRAMS = {
    "first_agent": (
        "core",
        ['calls lookup({"name": "len"})', "The built-in len() returns the number of items in a container."],
    ),
    "openai_tools": ("core", ["with_chat", "with_responses", "calls lookup("]),
    "openai_structured": ("core", ["chat, pydantic    name=", "responses         name=", "guided_regex"]),
    "anthropic_agent": ("core", ["sorted", "calls lookup(", "tokens in the prompt", "stop_reason=end_turn"]),
    "langchain_chat": (
        "frameworks",
        [
            "number of items",
            "logprobs",
            "json_schema name=",
            "function_calling name=",
            "'name': 'lookup'",
            "[256, 256]",
        ],
    ),
    "llamaindex_chat": ("frameworks", ["number of items", "structured name=", "[256, 256]"]),
    "langchain_rag": ("frameworks", ["nearest  What does sorted do?", "number of items", "ascending order"]),
    "llamaindex_rag": (
        "frameworks",
        ["nearest  What does sorted do? sorted.txt", "number of items", "ascending order"],
    ),
    "pydantic_ai_agent": ("core", ["OpenAIResponsesModel", "number of items", "typed  name="]),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("examples")
    flags = ("--load_format", "auto")
    with running_server(folder, EXAMPLES / "demo_model" / "model", *flags, engine="real") as process:
        yield process


@pytest.mark.clients
@pytest.mark.timeout(700)
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_example_runs(server: ServerProcess, name: str) -> None:
    group, shown = PROGRAMS[name]
    found = subprocess.run(
        [str(python_of(group)), str(EXAMPLES / "clients" / f"{name}.py")],
        env={**os.environ, "BASE_URL": f"{server.url}/v1", "NO_PROXY": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert [text for text in shown if text not in found.stdout] == [], found.stdout


def test_every_example_is_listed() -> None:
    programs = {path.stem for path in (EXAMPLES / "clients").glob("*.py")} - {"server", "documents"}
    assert programs == PROGRAMS.keys()
    readme = (EXAMPLES / "clients" / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}.py`" in readme for name in programs)


def test_the_versions_of_the_examples_are_run() -> None:
    run = {line for name in ("core", "frameworks") for line in _pins(REQUIREMENTS / f"{name}.lock.txt")}
    assert _pins(EXAMPLES / "clients" / "requirements.txt") - run == set()


def _pins(path: Path) -> set[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return {re.sub(r"\[.*\]", "", line) for line in lines if "==" in line}
