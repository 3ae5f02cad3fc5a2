"""Quantised checkpoints with a folder for each rank: the bytes of ``blade_llm_split`` of the whole one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.families import ROWS, save_row
from engine_support.killed import disk_calls, killed_at
from engine_support.quantize_runs import BLOCKS, FORMS, SIZES, content, quantize
from engine_support.runner_driver import Driver, prompt_of
from engine_support.thread_ranks import thread_ranks
from engine_support.tiny_models import save_model

from blade_llm.cli.split import main as split_main
from blade_llm.models.implementation import read_model_config
from blade_llm.quantize import writer
from blade_llm.weights.checkpoint import check_weights, open_checkpoint
from blade_llm.weights.split.manifest import SPLIT_NAME

SPLIT = ("-tp", "2", "--split_output")
PARTS = "rank_0/model.safetensors", "rank_1/model.safetensors"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("whole")
    save_model(folder, "qwen2", torch.bfloat16, **SIZES, tie_word_embeddings=True)
    return folder


def split(model: Path, folder: Path, *flags: str) -> Path:
    assert split_main(["--model", str(model), "-tp", "2", "--output_dir", str(folder), *flags]) == 0
    return folder


def described(folder: Path) -> dict[str, Any]:
    """``blade_split.json`` without what tells one source file from another of its name."""
    found: dict[str, Any] = json.loads((folder / SPLIT_NAME).read_text())
    return {**found, "source": [file["name"] for file in found["source"]]}


@pytest.mark.parametrize("form", FORMS)
def test_the_bytes_are_those_of_the_whole_one_split(model: Path, tmp_path: Path, form: str) -> None:
    flags = (*FORMS[form], "--max_shard_size", "20KB")
    assert quantize(model, tmp_path / "whole", *flags) == 0
    expected = split(tmp_path / "whole", tmp_path / "expected", "--max_shard_size", "20KB")
    assert quantize(model, tmp_path / "parts", *flags, *SPLIT) == 0
    weights = {str(file.relative_to(expected)) for file in expected.rglob("*.safetensors*")}
    found = {str(file.relative_to(tmp_path / "parts")) for file in (tmp_path / "parts").rglob("*.safetensors*")}
    assert found == weights
    assert len(weights) > 4
    for name in (*weights, "config.json", "README.md"):
        assert (tmp_path / "parts" / name).read_bytes() == (expected / name).read_bytes(), name
    assert described(tmp_path / "parts") == described(expected)
    assert not (tmp_path / "parts" / "parts").exists()


def test_ranks_serve_it_and_it_joins(model: Path, tmp_path: Path) -> None:
    parts, whole = tmp_path / "parts", tmp_path / "whole"
    both = ("--quant_lm_head", "--quant_embedding")
    assert quantize(model, parts, *BLOCKS, *both, *SPLIT) == 0
    assert quantize(model, whole, *BLOCKS, *both) == 0
    assert check_weights(open_checkpoint(parts, 2), read_model_config(parts)) == []
    tokens = Driver(thread_ranks(whole, 2)).generate(0, prompt_of(40), 12)
    assert Driver(thread_ranks(parts, 2)).generate(0, prompt_of(40), 12) == tokens
    joined = tmp_path / "joined"
    assert split_main(["--model", str(parts), "--reverse", "--output_dir", str(joined)]) == 0
    assert (joined / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", ["mixtral"])
def test_a_split_source_says_for_how_many_ranks(tmp_path: Path, name: str) -> None:
    """And whether they have experts whole."""
    save_row(tmp_path / "plain", ROWS[name])
    source = split(tmp_path / "plain", tmp_path / "source", "--enable_expert_parallel")
    assert quantize(source, tmp_path / "parts", "--split_output") == 0
    assert quantize(tmp_path / "plain", tmp_path / "whole") == 0
    expected = split(tmp_path / "whole", tmp_path / "expected", "--enable_expert_parallel")
    for part in PARTS:
        assert (tmp_path / "parts" / part).read_bytes() == (expected / part).read_bytes()
    assert described(tmp_path / "parts") == described(expected)


@pytest.mark.parametrize("mounted", [pytest.param(False, marks=pytest.mark.soak), True])
def test_killed_it_goes_on_and_ends_with_the_same_bytes(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mounted: bool
) -> None:
    monkeypatch.setattr(writer, "SYNC_SECONDS", 0.0)
    flags = (*BLOCKS, *SPLIT)

    def output(name: str) -> Path:
        if mounted:
            (tmp_path / name).mkdir(exist_ok=True)
        return tmp_path / name

    calls = disk_calls(lambda: quantize(model, output("made"), *flags))
    made = content(tmp_path / "made")
    assert set(PARTS) < made.keys()
    for place in sorted({*range(1, calls, calls // 6), *range(calls - 24, calls, 2)}):
        killed_at(place, lambda name=str(place): quantize(model, output(name), *flags))  # type: ignore[misc]
        assert quantize(model, output(str(place)), *flags) == 0
        assert content(tmp_path / str(place)) == made, place


def test_the_same_command_finds_its_work_done(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "parts"
    assert quantize(model, output, *BLOCKS, *SPLIT) == 0
    assert quantize(model, output, *BLOCKS, *SPLIT) == 0
    assert "is there already, made by the same command" in capsys.readouterr().err
    assert quantize(model, output, *BLOCKS) == 1
    assert "is not empty" in capsys.readouterr().err
    (output / PARTS[1]).unlink()
    assert quantize(model, output, *BLOCKS, *SPLIT) == 1


@pytest.mark.parametrize("flags", [(), ("-tp", "1")])
def test_no_ranks(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]) -> None:
    assert quantize(model, tmp_path / "parts", "--split_output", *flags) == 1
    assert "give --tensor_parallel_size, 2 or more" in capsys.readouterr().err
    assert not (tmp_path / "parts").exists()
