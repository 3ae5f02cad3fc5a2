"""One server process for all tests that do not end it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_support.server_process import ServerProcess, running_server
from engine_support.tiny_text import write_model


@pytest.fixture(scope="session")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder without weights."""
    return write_model(tmp_path_factory.mktemp("model") / "tiny-chat")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, text_model: Path) -> Iterator[ServerProcess]:
    """A running server with a fake engine; tests may use it, not end or drain it."""
    with running_server(tmp_path_factory.mktemp("server"), text_model, "--max_num_seqs", "8") as process:
        yield process
