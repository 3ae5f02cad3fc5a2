"""Speculative decoding with CUDA graphs: steps that verify drafts are replayed, and the draft model's own steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.feature_load import check_equal, core_for, free_drafts, requests_of, run
from engine_support.heads import save_eagle3, save_with_mtp
from engine_support.recording_graphs import RecordingGraphs, prepare_from_device
from engine_support.tiny_models import engine_config

from blade_llm.config import SpeculativeConfig
from blade_llm.models.config import load_model_config
from blade_llm.runner.graphs.mixed import MixedGraphs
from blade_llm.runner.torch_runner import TorchRunner

REQUESTS = requests_of(18)
SETTINGS: dict[str, Any] = {"max_num_seqs": 12, "max_model_len": 256, "max_batch_tokens": 200}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("target")
    save_with_mtp(folder, "qwen3")
    save_eagle3(folder / "head", eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    return folder


@pytest.mark.parametrize("method", ["ngram", "draft", "look_ahead", "eagle3", "mtp"])
def test_no_token_differs_and_drafts_are_verified_in_graphs(
    folder: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run(core_for(engine_config(folder, **SETTINGS)), REQUESTS, stagger=1)
    monkeypatch.setattr("blade_llm.runner.forward_pass.prepare", prepare_from_device)
    speculative = SpeculativeConfig(
        method=method,  # type: ignore[arg-type]
        ngram_min_match=1,
        look_ahead_gram_size=2,
        draft_model={"draft": str(folder), "eagle3": str(folder / "head")}.get(method, ""),
    )
    config = engine_config(folder, speculative=speculative, **SETTINGS)
    runner = TorchRunner(config, load_model_config(config.model_dir), RecordingGraphs)
    with torch.inference_mode():
        runner._capture()
    replays: dict[str, int] = {}
    for graphs in runner.all_graphs:
        _count(graphs, f"{graphs.log_name}{graphs.kind}", replays)
    core = core_for(config, runner, step_seconds=free_drafts())
    for name, result in run(core, REQUESTS, stagger=1).items():
        check_equal(result, expected[name])
    counts = core.state(epoch="", sequence=0, draining=False).speculation
    assert counts is not None
    assert counts.accepted_tokens > 0
    of_draft = {name for name in replays if name.endswith("of drafts")}
    drafting = {"graph_num_tokens of drafts", "graph_batch_size of drafts"}
    assert of_draft == (drafting if method in ("draft", "eagle3", "mtp") else set())
    assert replays["graph_num_tokens verifying"] > counts.drafts / 12


def _count(graphs: Any, name: str, replays: dict[str, int]) -> None:
    replay, pack = graphs._replay, getattr(graphs, "pack", None)

    def counted(size: int) -> torch.Tensor:
        replays[name] = replays.get(name, 0) + 1
        return replay(size)

    graphs._replay = counted
    if isinstance(graphs, MixedGraphs) and pack is not None and not graphs.kind:

        def packed(size: int, *vectors: Any) -> Any:
            verifies = len(vectors[4]) > len(vectors[0])  # more tokens are selected than there are sequences
            replays[f"{name} verifying"] = replays.get(f"{name} verifying", 0) + verifies
            return pack(size, *vectors)

        graphs.pack = packed  # type: ignore[method-assign]
