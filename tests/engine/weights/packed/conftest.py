"""Models to pack and a folder to keep them in."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_support.packed_starts import keep_small_models, names_read
from hub_support.tiny_model import make_model


@pytest.fixture(autouse=True)
def small_models_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of any size are kept, and a test goes on when a file is complete."""
    keep_small_models(monkeypatch)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path / "model", shards=2)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "packed"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the tensors that are read from the model's files."""
    return names_read(monkeypatch)
