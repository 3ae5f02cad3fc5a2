"""Anthropic's own client: messages, streams, a coding agent's loop, its tool runner, its exceptions."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_support.anthropic_script import run_program, write_agent_model
from engine_support.server_process import running_server


@pytest.mark.clients
def test_the_official_client(tmp_path: Path) -> None:
    with running_server(tmp_path, write_agent_model(tmp_path / "tools"), engine="scripted") as server:
        found = run_program(server.url)
    assert (found.returncode, found.stdout) == (0, "all well\n"), found.stderr
