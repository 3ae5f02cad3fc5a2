"""Completion: by the script in a real bash, and by kubectl's protocol for plugins."""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from operator_support.fake_cluster import fake_cluster, llm

from blade_operator.kubectl import completion
from blade_operator.kubectl import main as program


def _complete(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert completion.main(list(words)) == 0
    return [line.partition("\t")[0] for line in capsys.readouterr().out.splitlines()]


def test_commands_options_and_choices(capsys: pytest.CaptureFixture[str]) -> None:
    assert _complete(capsys, "sta") == ["status", ":4"]
    assert {"status", "top", "chat", "rollout", ":4"} <= set(_complete(capsys, ""))
    assert _complete(capsys, "rollout", "re") == ["resume", "restart", "retry", ":4"]
    assert _complete(capsys, "top", "--on") == ["--once", ":4"]
    assert _complete(capsys, "status", "-o", "") == ["yaml", "json", ":4"]
    assert _complete(capsys, "completion", "b") == ["bash", ":4"]
    assert _complete(capsys, "status", "--kubeconfig", "") == [":0"]
    assert _complete(capsys, "check", "--", "") == [":0"]
    assert _complete(capsys, "no-such-command", "x") == [":4"]


def test_names_of_services(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "_SECONDS", 60.0)  # a busy machine
    with fake_cluster(tmp_path) as cluster:
        cluster.put(llm("qwen"), llm("query"), llm("poet"), llm("quiz", "other"))
        place = ("--kubeconfig", str(cluster.kubeconfig))
        assert _complete(capsys, "status", *place, "q") == ["qwen", "query", ":4"]
        assert _complete(capsys, "logs", *place, "-n", "other", "") == ["quiz", ":4"]
        assert _complete(capsys, "rollout", "pause", *place, "po") == ["poet", ":4"]
        assert _complete(capsys, "chat", *place, "qwen", "") == [":4"]
        cluster.refused["/llmservices"] = (403, "forbidden")
        assert _complete(capsys, "status", *place, "q") == [":4"]


def test_nobody_waits_for_a_cluster_that_is_silent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "_SECONDS", 0.1)
    with fake_cluster(tmp_path) as cluster, socket.create_server(("127.0.0.1", 0)) as silent:
        text = cluster.kubeconfig.read_text()
        (address,) = set(re.findall(r"127\.0\.0\.1:\d+", text))
        (tmp_path / "silent").write_text(text.replace(address, f"127.0.0.1:{silent.getsockname()[1]}"))
        before = threading.enumerate()
        assert _complete(capsys, "status", "--kubeconfig", str(tmp_path / "silent"), "q") == [":4"]
        waiting = [thread for thread in threading.enumerate() if thread not in before]
        assert waiting
        assert all(
            thread.daemon for thread in waiting
        )  # others would keep the process, and its user, for half a minute


def test_in_a_real_bash(tmp_path: Path) -> None:
    (tmp_path / "kubectl-llm").write_text(f'#!/bin/sh\nexec {sys.executable} -m blade_operator.kubectl.main "$@"\n')
    (tmp_path / "kubectl-llm").chmod(stat.S_IRWXU)
    script = """
        source <(kubectl-llm completion bash)
        complete -p kubectl-llm
        COMP_WORDS=(kubectl-llm rollout re) COMP_CWORD=2
        _kubectl_llm
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    paths = [path for path in sys.path if path]
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(paths),
    }
    done = subprocess.run(["bash", "--norc", "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["complete -F _kubectl_llm kubectl-llm", "resume", "restart", "retry"], (
        done.stderr
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_are_well_formed(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "kubectl-llm __complete" in script
    assert script.startswith("#compdef") == (shell == "zsh")
    if shutil.which(shell):
        (tmp_path / "script").write_text(script)
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True, timeout=60)
