"""A real server on a quantised folder says what it says on a plain one with the same numbers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from engine_support.quantize_runs import quantize, stored_linears, with_weights
from engine_support.server_process import running_server
from engine_support.tiny_models import copy_with_weights

REQUEST = {"prompt": "What is a block table?", "max_tokens": 24, "temperature": 0.8, "seed": 7}
FLAGS = ("--load_format", "auto", "--dtype", "float32", "--kv_cache_bytes", "16MiB")


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, text_model: Path) -> Path:
    """Of a short name, as the paths of sockets are short; with the model of ``text_model`` and weights."""
    folder = tmp_path_factory.mktemp("q")
    copy_with_weights(text_model, folder / "model")
    return folder


def test_it_answers_as_with_these_numbers_in_full(folder: Path) -> None:
    assert quantize(folder / "model", folder / "small", "--bit", "4") == 0
    plain = with_weights(folder / "model", folder / "plain", stored_linears(folder / "small"))
    for file in (folder / "small").iterdir():
        if file.suffix != ".safetensors" and not (plain / file.name).exists():
            shutil.copy(file, plain)
    texts = []
    for place, model in (("s", folder / "small"), ("p", plain)):
        with running_server(folder / place, model, *FLAGS, engine="real") as server:
            texts.append(server.post("/v1/completions", **REQUEST).json()["choices"][0]["text"])
    assert texts[0] == texts[1] != ""
