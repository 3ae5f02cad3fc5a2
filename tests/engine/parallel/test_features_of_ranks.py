"""Everything a request can set at once, computed by ranks in little memory: each gets what one rank gives it."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import torch
from engine_support.feature_load import Result, check_equal, core_for, free_drafts, requests_of, restricted, run
from engine_support.thread_ranks import ThreadRanks
from engine_support.tiny_models import engine_config, save_model
from safetensors.torch import load_file, save_file

from blade_llm.config import SpeculativeConfig, SpeculativeMethod
from blade_llm.engine.messages import GenerateRequest

IN_ROOM = [(2, 1, None), (1, 2, 4)]
"""Layouts without preemptions also where the long tests are not run."""
DRAFTED = [
    *(((2, 1, None), method) for method in ("ngram", "draft")),
    *(((2, 2, None), method) for method in ("look_ahead", "draft", "equal")),
    *(((1, 3, 4), method) for method in ("ngram", "look_ahead", "draft")),
]
"""Layouts with a way to draft, of which all pairs are in the long tests."""


@pytest.fixture(scope="module", params=[12, pytest.param(24, marks=pytest.mark.soak)], ids="{} requests".format)
def requests(request: pytest.FixtureRequest) -> list[GenerateRequest]:
    """At least two of each kind."""
    return restricted(requests_of(request.param))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("qwen2")
    save_model(folder, "qwen2")
    return folder


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smaller model, to draft."""
    folder: Path = tmp_path_factory.mktemp("draft")
    save_model(folder, "llama", num_hidden_layers=1)
    return folder


@pytest.fixture(scope="module")
def of_one_rank(folder: Path, requests: list[GenerateRequest]) -> dict[str, Result]:
    return run(core_for(engine_config(folder, max_num_seqs=24, max_model_len=256)), requests, stagger=1)


@pytest.mark.parametrize(
    ("size", "stages", "batches", "preempting"),
    [
        pytest.param(*layout, preempting, marks=[] if preempting or layout in IN_ROOM else pytest.mark.soak)
        for layout in [(2, 1, None), (4, 1, None), (1, 2, None), (1, 3, None), (2, 2, None), (1, 2, 4)]
        for preempting in (False, True)
    ],
)
def test_tokens_are_those_of_one_rank(
    folder: Path,
    requests: list[GenerateRequest],
    of_one_rank: dict[str, Result],
    size: int,
    stages: int,
    batches: int | None,
    preempting: bool,
) -> None:
    """In stages with several steps in flight."""
    blocks = (32 if stages == 1 and len(requests) > 12 else 20) if preempting else None
    config = engine_config(
        folder,
        max_num_seqs=24,
        max_model_len=256,
        max_kv_blocks=blocks,
        tensor_parallel_size=size,
        pipeline_parallel_size=stages,
        pipeline_micro_batch=batches,
    )
    ranks = ThreadRanks(config)
    core = core_for(config, ranks)  # type: ignore[arg-type]
    together = run(core, requests, stagger=1)
    assert (core.state(epoch="", sequence=0, draining=False).preemptions_total > 0) == preempting
    assert together.keys() == of_one_rank.keys()
    for name, result in together.items():
        check_equal(result, of_one_rank[name])
    if size > 1:
        assert len({group.reduced for group in ranks.groups}) == 1


@pytest.mark.parametrize(
    ("size", "stages", "batches", "method"),
    [
        pytest.param(*layout, method, marks=[] if (layout, method) in DRAFTED else pytest.mark.soak)
        for layout in [(2, 1, None), (2, 2, None), (1, 3, 4), (1, 2, None)]
        for method in ("ngram", "look_ahead", "draft", "equal")
    ],
)
def test_draft_tokens_are_verified_alike(
    folder: Path,
    other: Path,
    requests: list[GenerateRequest],
    of_one_rank: dict[str, Result],
    size: int,
    stages: int,
    batches: int | None,
    method: str,
) -> None:
    """A draft model is whole on every rank of the first stage, and drafts the same there."""
    drafts = {"draft": other, "equal": folder}.get(method)
    speculative = SpeculativeConfig(
        method=cast("SpeculativeMethod", method if drafts is None else "draft"),
        gamma=3,
        draft_model="" if drafts is None else str(drafts),
    )
    config = engine_config(
        folder,
        max_num_seqs=24,
        max_model_len=256,
        max_kv_blocks=40 if stages == 1 else 20,
        speculative=speculative,
        tensor_parallel_size=size,
        pipeline_parallel_size=stages,
        pipeline_micro_batch=batches,
    )
    ranks = ThreadRanks(config)
    assert [runner.draft is not None for runner in ranks.runners] == [
        drafts is not None and rank < size for rank in range(size * stages)
    ]
    core = core_for(config, ranks, step_seconds=free_drafts())  # type: ignore[arg-type]
    for name, result in run(core, requests, stagger=1).items():
        check_equal(result, of_one_rank[name])
    counts = core.state(epoch="", sequence=0, draining=False).speculation
    assert counts is not None
    assert counts.accepted_tokens > 0
    assert not counts.failed
    if stages > 1:
        assert core.state(epoch="", sequence=0, draining=False).preemptions_total


def test_a_draft_model_of_nan_in_the_first_stage_is_switched_off(
    folder: Path, tmp_path: Path, requests: list[GenerateRequest], of_one_rank: dict[str, Result]
) -> None:
    """The last stage, which verifies what it made, sees nothing wrong."""
    save_model(tmp_path, "llama", num_hidden_layers=1)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.norm.weight"] = torch.full_like(weights["model.norm.weight"], 3e38)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = engine_config(
        folder,
        max_num_seqs=24,
        max_model_len=256,
        speculative=SpeculativeConfig(method="draft", gamma=3, draft_model=str(tmp_path)),
        pipeline_parallel_size=2,
    )
    core = core_for(config, ThreadRanks(config), step_seconds=free_drafts())  # type: ignore[arg-type]
    for name, result in run(core, requests[:6], stagger=1).items():
        check_equal(result, of_one_rank[name])
    counts = core.state(epoch="", sequence=0, draining=False).speculation
    assert counts is not None
    assert counts.failed
