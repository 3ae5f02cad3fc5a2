"""A real server of two ranks on a folder that was split for two."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from engine_support.server_process import running_server
from engine_support.tiny_models import copy_with_weights

from blade_llm.cli.quantize import main as quantize
from blade_llm.cli.split import main

REQUEST = {"prompt": "What is a block table?", "max_tokens": 24, "temperature": 0.8, "seed": 7}
FLAGS = ("--dtype", "float32", "--kv_cache_bytes", "16MiB")


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, text_model: Path) -> Path:
    """Of a short name, as the paths of sockets are short; with the model of ``text_model`` and weights."""
    folder = tmp_path_factory.mktemp("s")
    copy_with_weights(text_model, folder / "model")
    return folder


@pytest.mark.parametrize(
    "quantised", [pytest.param(False, id="plain", marks=pytest.mark.soak), pytest.param(True, id="quantised")]
)
def test_it_answers_as_on_the_whole_folder_and_refuses_another_size(folder: Path, quantised: bool) -> None:
    model, split = folder / "model", folder / "split"
    if quantised:
        assert quantize(["--model", str(model), "--output_dir", str(folder / "int8")]) == 0
        model = folder / "int8"
    assert main(["--model", str(model), "-tp", "2", "--output_dir", str(split)]) == 0
    texts = []
    for place, each in (("w", model), ("p", split)):
        flags = ("-tp", "2", "--load_format", "auto", *FLAGS)
        with running_server(folder / place, each, *flags, engine="real") as server:
            texts.append(server.post("/v1/completions", **REQUEST).json()["choices"][0]["text"])
    assert texts[0] == texts[1]
    command = [sys.executable, "-m", "blade_llm.cli.server", "--model", str(split), "--port", "0", *FLAGS]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode != 0
    assert "holds a model split for --tensor_parallel_size 2, not 1" in ended.stderr
