"""``--task embed`` and ``--pooling``: which routes a server has, and how the model's folder says how it pools."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine_support.server_process import ServerProcess, running_server

from blade_llm.api.common.pooling import find_pooling
from blade_llm.api.common.served_model import ModelSource, load_served_model
from blade_llm.api.common.tasks import is_served
from blade_llm.server.routes import ROUTES
from blade_llm.text.errors import TokenizerFilesError

GENERATING = [
    route.path for route in ROUTES if is_served(route.path, "generate") and not is_served(route.path, "embed")
]


def _pools(folder: Path, **switches: Any) -> Path:
    """A module of sentence-transformers in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **switches}))
    return folder


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory, text_model: Path) -> Iterator[ServerProcess]:
    with running_server(tmp_path_factory.mktemp("embedder"), text_model, "--task", "embed") as process:
        yield process


@pytest.mark.parametrize("path", GENERATING)
def test_an_embedding_server_says_why_it_generates_nothing(embedder: ServerProcess, path: str) -> None:
    response = httpx.post(embedder.url + path, json={"prompt": "x", "messages": [], "stream": True})
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("not_found_error", "task_not_served")
    assert "--task embed" in error["message"]
    assert "/v1/embeddings" in error["message"]
    assert httpx.get(embedder.url + path).status_code in (404, 405)


def test_nor_does_it_keep_responses(embedder: ServerProcess) -> None:
    response = httpx.get(f"{embedder.url}/v1/responses/resp_1")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "task_not_served")


def test_the_openapi_document_has_what_is_served(embedder: ServerProcess, server: ServerProcess) -> None:
    served = httpx.get(f"{embedder.url}/openapi.json").json()["paths"]
    assert {"/v1/chat/completions", "/v1/completions"} <= set(GENERATING)
    assert not set(GENERATING) & set(served)
    assert {"/v1/embeddings", "/tokenize", "/v1/models", "/health"} <= set(served)
    assert set(GENERATING) <= set(httpx.get(f"{server.url}/openapi.json").json()["paths"])
    assert httpx.get(f"{embedder.url}/v1/models").json()["data"][0]["id"] == "tiny-chat"


def test_the_folder_says_how_it_pools(tmp_path: Path) -> None:
    assert find_pooling(tmp_path) is None
    _pools(tmp_path / "1_Pooling", pooling_mode_mean_tokens=True, pooling_mode_cls_token=False)
    assert find_pooling(tmp_path) == "mean"
    _pools(tmp_path / "1_Pooling", pooling_mode_mean_tokens=False, pooling_mode_cls_token=True)
    assert find_pooling(tmp_path) == "cls"
    # modules.json wins where it names another folder.
    _pools(tmp_path / "2_Other", pooling_mode_lasttoken=True)
    modules = [
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "2_Other", "type": "sentence_transformers.models.Pooling"},
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    assert find_pooling(tmp_path) == "last"
    shutil.rmtree(tmp_path / "2_Other")  # as in a download that left it out
    with pytest.raises(TokenizerFilesError, match=r"2_Other/config.json is missing"):
        find_pooling(tmp_path)
    (tmp_path / "modules.json").write_text('{"path": 1}')
    with pytest.raises(TokenizerFilesError, match="no list of modules"):
        find_pooling(tmp_path)


@pytest.mark.parametrize(
    "switches",
    [
        {"pooling_mode_weightedmean_tokens": True},
        {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True},
    ],
)
def test_a_way_of_pooling_that_is_not_here_is_refused_for_embeddings_only(
    text_model: Path, tmp_path: Path, switches: dict[str, bool]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(text_model, folder)
    _pools(folder / "1_Pooling", **switches)

    def pooling(**fields: Any) -> str:
        return load_served_model(ModelSource(folder=str(folder), vocab_size=384, **fields)).pooling

    with pytest.raises(TokenizerFilesError, match="--pooling last, mean or cls"):
        pooling(task="embed")
    assert pooling(task="embed", pooling="mean") == "mean"
    assert pooling() == "last"


def test_a_model_that_looks_ahead_gives_no_embeddings(text_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(text_model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"is_causal": False}))
    encoder = ModelSource(folder=str(folder), vocab_size=384, task="embed", bidirectional=True)
    assert load_served_model(encoder).pooling == "cls"
    source = ModelSource(folder=str(folder), vocab_size=384, task="embed", pooling="mean")
    with pytest.raises(TokenizerFilesError, match="both directions"):
        load_served_model(source)
