"""Coding agents as people install them, against a real server whose model is scripted.

``make clients`` installs them (half a gigabyte, Linux on x86-64); ``BLADE_AGENTS`` names another folder.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients_support.environments import modules_of
from engine_support.agent_server import agent_server, call
from engine_support.server_process import ServerProcess

pytestmark = [pytest.mark.clients, pytest.mark.timeout(700)]
TASK = "Please count-the-files here."
RAN = "files-were-counted"
COMMAND = f"echo {RAN[:5]}; touch done.txt; echo {RAN}"
DONE = "All is counted."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with agent_server(
        tmp_path_factory.mktemp("agents"),
        ("count-the-files", call("exec_command", {"cmd": COMMAND})),
        ("run-a-shell", call("run_shell_command", {"command": COMMAND, "is_background": False})),
        ("run-bash", call("bash", {"command": COMMAND, "description": "Counts"})),
        (f"{RAN}\n", DONE),
        (f"{RAN}\\n", DONE),
    ) as process:
        yield process


def _program(name: str) -> str:
    folder = os.environ.get("BLADE_AGENTS") or modules_of("agent_clis") / ".bin"
    found = shutil.which(name, path=folder)
    assert found is not None, f"{name} is not installed"
    return found


def _run(tmp_path: Path, *command: str, **env: str) -> str:
    work = tmp_path / "work"
    work.mkdir()
    subprocess.run(["git", "init", "-q", str(work)], check=True)
    env = {**os.environ, "HOME": str(tmp_path / "home"), "PWD": str(work), "NO_COLOR": "1", **env}
    (tmp_path / "home").mkdir(exist_ok=True)
    done = subprocess.run(
        command, cwd=work, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False
    )
    assert (work / "done.txt").exists(), done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_codex(server: ServerProcess, tmp_path: Path) -> None:
    program = _program("codex")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(
        'model = "tools"\nmodel_provider = "blade"\ncheck_for_update_on_startup = false\n[analytics]\nenabled = false\n'
        f'[model_providers.blade]\nname = "blade"\nwire_api = "responses"\nbase_url = "{server.url}/v1"\n'
    )
    command = (program, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK)
    assert DONE in _run(tmp_path, *command, CODEX_HOME=str(tmp_path / "home"))


def test_qwen_code(server: ServerProcess, tmp_path: Path) -> None:
    program = _program("qwen")
    (tmp_path / "home" / ".qwen").mkdir(parents=True)
    settings = {"general": {"enableAutoUpdate": False}, "privacy": {"usageStatisticsEnabled": False}}
    (tmp_path / "home" / ".qwen" / "settings.json").write_text(json.dumps(settings))
    options = ("--auth-type", "openai", "--openai-base-url", f"{server.url}/v1", "--openai-api-key", "none")
    assert DONE in _run(tmp_path, program, "-p", "Please run-a-shell.", *options, "-m", "tools", "--yolo")


@pytest.mark.parametrize("provider", ["openai-compatible", "openai", "anthropic"])
def test_opencode(server: ServerProcess, tmp_path: Path, provider: str) -> None:
    """It speaks through Vercel's providers: the chat, responses and messages APIs."""
    program = _program("opencode")
    blade = {
        "npm": f"@ai-sdk/{provider}",
        "name": "blade",
        "options": {"baseURL": f"{server.url}/v1", "apiKey": "none"},
        "models": {"tools": {"name": "tools"}},
    }
    settings = {"provider": {"blade": blade}, "model": "blade/tools", "permission": "allow"}
    off = {f"OPENCODE_DISABLE_{what}": "1" for what in ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "SHARE")}
    env = {"OPENCODE_CONFIG_CONTENT": json.dumps(settings), **off}
    assert DONE in _run(tmp_path, program, "run", "Please run-bash.", **env)
