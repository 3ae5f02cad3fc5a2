"""``kubectl llm`` on a real cluster: kubectl finds the plugin on its PATH, and its commands show what is there."""

from __future__ import annotations

import base64
import json
import os
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.cluster.base import Cluster
from e2e.support.images import Images
from e2e.support.service import Service

Plugin = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def plugin(cluster: Cluster, tmp_path: Path) -> Plugin:
    """Runs ``kubectl llm`` as a user does who has installed it: its program is on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "kubectl-llm"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m blade_operator.kubectl.main "$@"\n')
    program.chmod(0o755)

    def run(*words: str, input: str | None = None, code: int = 0) -> subprocess.CompletedProcess[str]:
        path = f"{folder}{os.pathsep}{cluster.environment['PATH']}"
        python = os.pathsep.join(path for path in sys.path if path)
        argv = ["env", f"PATH={path}", f"PYTHONPATH={python}", "kubectl", "llm", *words]
        done = cluster.run(argv, input=input, timeout=300)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


def test_status_is_the_tree_of_the_service(demo: Service, plugin: Plugin) -> None:
    out = plugin("status", "demo", "-n", demo.namespace).stdout
    assert out.startswith("llm/demo  Ready  1/1 engines ready")
    for pod in demo.objects("pods"):
        assert pod["metadata"]["name"] in out
    data = json.loads(plugin("status", "demo", "-n", demo.namespace, "-o", "json").stdout)
    assert {each["role"] for each in data["pods"]} == {"engine", "router"}


def test_chat_streams_through_a_port_forward(demo: Service, plugin: Plugin) -> None:
    words = ("chat", "demo", "-n", demo.namespace, "--temperature", "0", "--max_tokens", "24")
    assert "number of items" in plugin(*words, "What does len do?").stdout
    assert "number of items" in plugin(*words, input="What does len do?\n").stdout


def test_top_measures_routers_and_engines(demo: Service, plugin: Plugin) -> None:
    data = json.loads(plugin("top", "demo", "-n", demo.namespace, "-o", "json").stdout)["services"][0]
    assert data["problems"] == []
    assert [each["state"] for each in data["engines"]] == ["up"]


def test_logs_and_command_are_those_of_the_pods(demo: Service, plugin: Plugin) -> None:
    assert "ready at" in plugin("logs", "demo", "-n", demo.namespace, "-c", "engine").stdout
    assert "blade_llm_server --model" in plugin("command", "demo", "-n", demo.namespace, "--role", "engine").stdout


def test_check_runs_alone_on_the_node_and_leaves_nothing(demo: Service, plugin: Plugin, images: Images) -> None:
    words = ("check", "-n", demo.namespace, "--image", images.engine, "--", "--items", "shm")
    out = plugin(*words).stdout
    assert "check_shm       PASS" in out
    demo.until(lambda: not demo.json("get", "jobs")["items"], "without the Job of the check", 30)


def test_doctor_packs_up_without_secrets(demo: Service, plugin: Plugin, tmp_path: Path) -> None:
    out = plugin("doctor", "demo", "-n", demo.namespace, "--output_dir", str(tmp_path)).stdout
    assert "nothing is wrong with demo" in out or "!" in out
    encoded = [value for each in demo.objects("secrets") for value in (each.get("data") or {}).values() if value]
    secrets = [*encoded, *(base64.b64decode(value).decode(errors="replace") for value in encoded)]
    [path] = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        texts = [file.read().decode() for each in archive if (file := archive.extractfile(each)) is not None]
    assert secrets
    assert not [value for value in secrets for text in texts if value in text]
