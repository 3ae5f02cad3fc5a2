"""What a terminal shows while a service comes up, and what a log file gets instead."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from blade_operator.cli.report import Reporter
from blade_operator.model.objects import Object
from blade_operator.program import program


def _service(ready: str = "False", reason: str = "EnginesStarting", message: str = "", **status: Any) -> Object:
    return {
        "metadata": {"name": "qwen", "uid": "u", "generation": 1},
        "spec": {"model": {"uri": "file:///models/qwen"}},
        "status": {
            "url": "http://127.0.0.1:8080/v1",
            "conditions": [
                {"type": "Ready", "status": ready, "reason": reason, "message": message},
                {"type": "SpecValid", "status": "True", "reason": "Valid", "message": "the spec is valid"},
                {"type": "Degraded", "status": "False", "reason": "AsExpected"},
            ],
            **status,
        },
    }


def _screen(*, terminal: bool) -> tuple[Console, io.StringIO]:
    output = io.StringIO()
    return Console(file=output, force_terminal=terminal, width=120, color_system=None), output


def _text(output: io.StringIO) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.getvalue())


def test_a_log_gets_one_line_a_transition_and_no_noise() -> None:
    console, output = _screen(terminal=False)
    reporter = Reporter(console)
    reporter.watch(_service())
    for service in (_service(), _service(message="1 of 2"), _service("True", "Ready", "2 of 2 engines ready")):
        reporter.update(service)
    assert output.getvalue().splitlines() == [
        "qwen: Ready is False (EnginesStarting)",
        "qwen: SpecValid is True (Valid): the spec is valid",
        "qwen: Ready is True (Ready): 2 of 2 engines ready, at http://127.0.0.1:8080/v1",
    ]


def test_a_download_is_logged_once_per_line() -> None:
    console, output = _screen(terminal=False)
    reporter = Reporter(console)
    for note in ("downloading (10 %)", "downloading (10 %)", "downloading (20 %)", ""):
        reporter.update(_service(), note)
    assert [line for line in output.getvalue().splitlines() if "downloading" in line] == [
        "qwen: downloading (10 %)",
        "qwen: downloading (20 %)",
    ]


def test_a_terminal_gets_a_checklist_that_ends_as_it_stands() -> None:
    console, output = _screen(terminal=True)
    reporter = Reporter(console)
    reporter.watch(_service())
    reporter.update(_service(), "downloading 5 of 10 bytes (50 %)")
    reporter.update(_service("True"))
    reporter.end_checklist()
    shown = _text(output)
    assert "downloading 5 of 10 bytes (50 %)" in shown
    last = shown[shown.rindex("LLMService qwen") :]
    assert "1 of 1" in last
    assert "✓ SpecValid" in last
    assert "downloading" not in last


def test_a_failing_service_is_explained_with_the_command_that_shows_more() -> None:
    failure = {
        "pod": "qwen-engine-1",
        "container": "check",
        "restarts": 2,
        "lastLog": "needs 9 GiB",
        "message": "failed",
    }
    for terminal in (True, False):
        console, output = _screen(terminal=terminal)
        Reporter(console).explain(_service(failures=[failure]))
        assert "qwen cannot become ready" in _text(output)
        assert "needs 9 GiB" in _text(output)
        assert "blade_operator logs qwen-engine-1 -c check" in _text(output)


def _degraded(status: str) -> Object:
    service = _service("True", "Ready", "1 of 1 engines ready")
    service["status"]["conditions"][2].update(status=status, reason="AsExpected" if status == "False" else "Failing")
    return service


def test_what_was_only_on_the_checklist_is_not_called_off_in_a_line() -> None:
    console, output = _screen(terminal=True)
    reporter = Reporter(console)
    reporter.watch(_degraded("True"))
    reporter.update(_degraded("True"))
    reporter.end_checklist()
    reporter.update(_degraded("False"))
    assert "Degraded is" not in _text(output)
    for status in ("True", "False"):
        reporter.update(_degraded(status))
        assert f"qwen: Degraded is {status}" in _text(output)


def test_a_command_is_suggested_as_it_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = tmp_path / ".venv" / "bin"
    beside.mkdir(parents=True)
    (beside / "blade_operator").touch(mode=0o755)
    monkeypatch.setattr("sys.executable", str(beside / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    assert program() == str(beside / "blade_operator")
    monkeypatch.chdir(tmp_path)
    assert program() == ".venv/bin/blade_operator"
    monkeypatch.setenv("PATH", str(beside))
    assert program() == "blade_operator"
