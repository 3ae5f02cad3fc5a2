"""A real server on quantised checkpoints: the same text as on the numbers that they stand for; and the check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_support.compressed_tensors import FORMS
from engine_support.quantized_checkpoints import float8, gptq, save_quantized
from engine_support.server_process import running_server
from engine_support.tiny_text import CONFIG, write_tokenizer

from blade_llm.check.model import check_model

REQUEST = {"prompt": "What is a block table?", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
FLAGS = ("--dtype", "float32", "--kv_cache_bytes", "16MiB", "--load_format", "auto")
SHAPE = {name: value for name, value in CONFIG.items() if name not in ("architectures", "rope_theta")}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GPTQ with act-order, and a tokenizer; of a short name, as the paths of sockets are short."""
    return save(tmp_path_factory.mktemp("q"), *gptq(4, 32, symmetric=False, act_order=True))


def save(folder: Path, config: Any, quantize: Any) -> Path:
    save_quantized(folder, "qwen2", config, quantize, **SHAPE)
    write_tokenizer(folder)
    write_tokenizer(folder / "plain")
    return folder


def test_it_answers_as_on_the_numbers_that_are_stored(model: Path) -> None:
    texts = []
    for place, folder in (("a", model), ("b", model / "plain")):
        with running_server(model / place, folder, *FLAGS, engine="real") as server:
            texts.append(server.post("/v1/completions", **REQUEST).json()["choices"][0]["text"])
            log = server.log.read_text()
        said = "14 linear layers are quantised in the checkpoint (GPTQ, 4 bits); activations are not"
        assert (said in log) == (folder == model)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("form", [gptq(4, 32), float8((32, 32)), FORMS["4 bits"]], ids=["gptq", "fp8", "ct"])
def test_the_check_passes(form: Any, tmp_path: Path) -> None:
    item = check_model(save(tmp_path, *form))
    assert item.status == "PASS", item.detail
    assert "not used" not in item.detail
