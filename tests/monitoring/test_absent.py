"""Without Prometheus these tests are skipped on a developer's machine, and fail in CI, in words."""

from __future__ import annotations

import shutil

import pytest
from monitoring_support.prometheus import program

WORDS = "promtool is not installed; install it with `make monitoring-deps`"


def test_an_absent_program_is_skipped_or_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=WORDS):
        program("promtool")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=WORDS):
        program("promtool")
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert program("promtool") == "/usr/bin/promtool"
