"""Command lines: references as Kubernetes expands them, and mount paths made real."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blade_operator.cluster.local.environment import arguments, expand, find_program, translate
from blade_operator.cluster.local.errors import ContainerConfigError

FOLDER = Path("/state/volumes/models")


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y2"),
        ("$(MISSING)", "$(MISSING)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A ${A}", "$A ${A}"),
    ],
)
def test_references(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expanded


@pytest.mark.parametrize(
    ("text", "translated"),
    [
        ("/models", "/state/volumes/models"),
        ("/models/a/b", "/state/volumes/models/a/b"),
        ("--dir=/models/a", "--dir=/state/volumes/models/a"),
        ("/x:/models", "/x:/state/volumes/models"),
        ("/modelship", "/modelship"),
        ("/srv/models", "/srv/models"),
        ("hf://models", "hf://models"),
        ("/models/cache/x", "/other/x"),
    ],
)
def test_mount_paths(text: str, translated: str) -> None:
    assert translate(text, {"/models": FOLDER, "/models/cache": Path("/other")}) == translated


@given(st.text())
def test_text_without_references_and_mounts_stays(text: str) -> None:
    if "$" not in text:
        assert expand(text, {"A": "1"}) == text
    assert translate(text, {}) == text


def test_a_program_beside_this_python_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("venv", "path"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tool").touch(mode=0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / "venv" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert find_program("tool") == str(tmp_path / "venv" / "tool")
    (tmp_path / "venv" / "tool").unlink()
    assert find_program("tool") == str(tmp_path / "path" / "tool")
    with pytest.raises(ContainerConfigError, match='program "nothing" is neither'):
        find_program("nothing")


def test_a_command_line_is_expanded_then_translated() -> None:
    container = {"command": ["/bin/echo"], "args": ["--port", "$(P)", "$(WHERE)/x"]}
    assert arguments(container, {"P": "1", "WHERE": "/models"}, {"/models": FOLDER}) == [
        "/bin/echo",
        "--port",
        "1",
        "/state/volumes/models/x",
    ]
