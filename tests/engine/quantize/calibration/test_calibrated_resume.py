"""Calibrated runs that are killed go on at the layer where they were, and end with the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.calibrated import save_with_tokenizer, write_texts
from engine_support.killed import disk_calls, killed_at
from engine_support.quantize_runs import BLOCKS, content, quantize

from blade_llm.quantize import writer
from blade_llm.quantize.calibration.layerwise import Layerwise
from blade_llm.quantize.calibration.search import find_smoothing
from blade_llm.quantize.calibration.states import StateFiles
from blade_llm.quantize.journal import JOURNAL_NAME, read_journal

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3}
LAYERS = 3
STATES = f"{JOURNAL_NAME}.states."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("whole")
    write_texts(folder / "texts.jsonl")
    save_with_tokenizer(folder / "m", "llama", **SIZES)
    return folder


def flags_of(folder: Path, algorithm: str, *more: str) -> tuple[str, ...]:
    texts = ("--calib_data_file", str(folder / "texts.jsonl"))
    return (*BLOCKS, "--max_shard_size", "60KB", "--quant_algo", algorithm, *texts, *more)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Which layers are quantised, and -1 for each search of an exponent."""
    seen: list[int] = []
    original = Layerwise.quantize_layer

    def noted(self: Layerwise, index: int, *more: Any) -> Any:
        seen.append(index)
        return original(self, index, *more)

    def searched(*arguments: Any) -> Any:
        seen.append(-1)
        return find_smoothing(*arguments)

    monkeypatch.setattr(Layerwise, "quantize_layer", noted)
    monkeypatch.setattr("blade_llm.quantize.calibration.run.find_smoothing", searched)
    return seen


@pytest.mark.parametrize(
    ("algorithm", "seconds"),
    [
        pytest.param(
            algorithm,
            seconds,
            id=f"{'each file' if seconds else 'each tensor'}-{algorithm}",
            marks=() if (algorithm, seconds) in (("gptq", 0.0), ("awq", 1e9)) else pytest.mark.soak,
        )
        for algorithm in ("gptq", "awq", "smoothquant+")
        for seconds in (0.0, 1e9)
    ],
)
def test_killed_anywhere_it_ends_with_the_same_bytes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str, seconds: float
) -> None:
    monkeypatch.setattr(writer, "SYNC_SECONDS", seconds)
    flags = flags_of(folder, algorithm, *(("--cpu_offload",) if seconds else ()))
    assert quantize(folder / "m", tmp_path / "made", *flags) == 0
    made = content(tmp_path / "made")
    assert not [name for name in made if JOURNAL_NAME in name]
    calls = disk_calls(lambda: quantize(folder / "m", tmp_path / "counted", *flags))
    assert calls > 60
    for place in sorted({*range(2, calls, calls // 6), *range(calls - 5, calls)}):
        output = tmp_path / str(place)
        killed_at(place, lambda output=output: quantize(folder / "m", output, *flags))  # type: ignore[misc]
        assert not output.exists()
        assert quantize(folder / "m", output, *flags) == 0
        assert content(output) == made, place
        assert not (tmp_path / f".{place}.staging").exists()


@pytest.mark.parametrize("algorithm", ["gptq", "smoothquant+"])
def test_layers_that_are_done_are_not_done_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computed: list[int], algorithm: str
) -> None:
    flags = flags_of(folder, algorithm)
    staging = tmp_path / ".o.staging"

    def killed_after(layer: int) -> None:
        """When the second file of states after the first run's is there, before it is noted."""
        original = Path.replace

        def counted(self: Path, target: Path) -> Path:
            found = original(self, target)
            if target.name == f"{STATES}{layer}":
                raise KeyboardInterrupt
            return found

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", counted)
            assert quantize(folder / "m", tmp_path / "o", *flags) == 130

    killed_after(2)
    search = [-1] if algorithm == "smoothquant+" else []
    assert computed == [*search, 0, 1]
    assert {file.name for file in staging.glob(f"{STATES}*")} == {f"{STATES}1", f"{STATES}2"}
    done = read_journal(staging / JOURNAL_NAME)[1]
    assert not [name for name in done if "layers.1." in name or "layers.2." in name]
    computed.clear()
    assert quantize(folder / "m", tmp_path / "o", *flags) == 0
    assert computed == [1, 2]


def test_states_that_are_gone(folder: Path, tmp_path: Path, computed: list[int]) -> None:
    """All layers are computed again, and what was written of them is replaced."""
    flags = flags_of(folder, "gptq")
    assert quantize(folder / "m", tmp_path / "made", *flags) == 0
    calls = disk_calls(lambda: quantize(folder / "m", tmp_path / "counted", *flags))
    killed_at(calls * 3 // 4, lambda: quantize(folder / "m", tmp_path / "o", *flags))
    found = list((tmp_path / ".o.staging").glob(f"{STATES}*"))
    assert found
    for file in found:
        file.unlink()
    computed.clear()
    assert quantize(folder / "m", tmp_path / "o", *flags) == 0
    assert computed == list(range(LAYERS))
    assert content(tmp_path / "o") == content(tmp_path / "made")


@pytest.mark.parametrize("change", ["texts", "length"])
def test_other_texts_begin_anew(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, computed: list[int], change: str
) -> None:
    flags = flags_of(folder, "gptq")
    calls = disk_calls(lambda: quantize(folder / "m", tmp_path / "counted", *flags))
    killed_at(calls * 3 // 4, lambda: quantize(folder / "m", tmp_path / "o", *flags))
    if change == "texts":
        write_texts(tmp_path / "other.jsonl", 9)
        flags = (*BLOCKS, "--quant_algo", "gptq", "--calib_data_file", str(tmp_path / "other.jsonl"))
    else:
        flags = (*flags, "--calib_length", "7")
    computed.clear()
    assert quantize(folder / "m", tmp_path / "o", *flags) == 0
    assert "it is begun anew" in caplog.text
    assert computed == list(range(LAYERS))


def test_a_finished_run_whose_leftovers_stay(folder: Path, tmp_path: Path, computed: list[int]) -> None:
    """Killed after the last note: the files of states are no part of the checkpoint."""
    flags = flags_of(folder, "gptq")
    assert quantize(folder / "m", tmp_path / "o", *flags) == 0
    made = content(tmp_path / "o")
    (tmp_path / "o").replace(tmp_path / ".o.staging")
    (tmp_path / ".o.staging" / f"{STATES}3").write_bytes(b"left")
    computed.clear()
    assert quantize(folder / "m", tmp_path / "o", *flags) == 0
    assert not computed
    assert content(tmp_path / "o") == made


def test_space_of_hidden_states_is_taken_before_they_are_written(tmp_path: Path) -> None:
    """A file with holes on a full disk would end the process with SIGBUS, and no word of why."""
    files = StateFiles(tmp_path, 1000, 100, 64, mapped=True)
    before = files.first(torch.ones(1000, 64), torch.ones(100, 64))
    after = files.next(before, 1)
    assert after.every.shape == (1100, 64)
    sizes = [file.stat().st_blocks * 512 for file in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert min(sizes) >= files.nbytes == 1100 * 64 * 4
