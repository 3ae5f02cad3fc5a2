"""Runs that are killed go on where they were, and end with the same bytes."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.killed import disk_calls, killed_at
from engine_support.quantize_runs import BLOCKS, SIZES, content, quantize
from engine_support.tiny_models import save_model

from blade_llm.quantize import run, writer
from blade_llm.quantize.journal import JOURNAL_NAME, Done, Journal, read_journal
from blade_llm.quantize.report import REPORT_NAME

FLAGS = (*BLOCKS, "--max_shard_size", "40KB")
TENSORS = 30


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("whole")
    save_model(folder, "llama", torch.bfloat16, **SIZES)
    return folder


@pytest.fixture(scope="module")
def made(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder: Path = tmp_path_factory.mktemp("made") / "small"
    assert quantize(model, folder, *FLAGS) == 0
    found = content(folder)
    assert len([name for name in found if name.endswith(".safetensors")]) == 3
    return found


@pytest.fixture
def worked_on(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the tensors that are read to be quantised or copied."""
    seen: list[str] = []
    original = writer._write_unit

    def noted(target: Any, file: Any, unit: Any, *more: Any) -> Any:
        seen.append(unit.source.name)
        return original(target, file, unit, *more)

    monkeypatch.setattr(writer, "_write_unit", noted)
    return seen


@pytest.mark.parametrize(
    "seconds", [pytest.param(0.0, id="each tensor"), pytest.param(1e9, id="each file", marks=pytest.mark.soak)]
)
def test_killed_anywhere_it_goes_on_and_ends_with_the_same_bytes(
    model: Path, made: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(writer, "SYNC_SECONDS", seconds)
    calls = disk_calls(lambda: quantize(model, tmp_path / "counted", *FLAGS))
    assert calls > 100
    for place in sorted({*range(1, calls, calls // 12), *range(calls - 8, calls + 1)}):
        output = tmp_path / str(place)
        killed_at(place, lambda output=output: quantize(model, output, *FLAGS))  # type: ignore[misc]
        if place == calls:  # the last makes sure that the new name is on the disk
            assert content(output) == made
            continue
        assert not output.exists()
        assert quantize(model, output, *FLAGS) == 0
        assert content(output) == made, place
        assert not (tmp_path / f".{place}.staging").exists()


def test_killed_again_and_again(
    model: Path, made: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run does a little and is killed."""
    monkeypatch.setattr(writer, "SYNC_SECONDS", 0.0)
    output, journal = tmp_path / "small", tmp_path / ".small.staging" / JOURNAL_NAME
    done = 0
    for _ in range(5):
        killed_at(25, lambda: quantize(model, output, *FLAGS))
        now = len(read_journal(journal)[1])
        assert now > done
        done = now
    assert quantize(model, output, *FLAGS) == 0
    assert content(output) == made


def test_what_is_done_is_not_done_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worked_on: list[str]
) -> None:
    monkeypatch.setattr(writer, "SYNC_SECONDS", 0.0)
    calls = disk_calls(lambda: quantize(model, tmp_path / "counted", *FLAGS))
    killed_at(calls // 2, lambda: quantize(model, tmp_path / "other", *FLAGS))
    done = read_journal(tmp_path / ".other.staging" / JOURNAL_NAME)[1]
    assert 5 < len(done) < TENSORS
    assert quantize(model, tmp_path / "other", *FLAGS) == 0
    assert len(worked_on) == TENSORS - len(done)
    assert not done.keys() & set(worked_on)


def test_a_finished_run_that_was_killed_before_its_new_name(
    model: Path, made: dict[str, bytes], tmp_path: Path, worked_on: list[str]
) -> None:
    output, staging = tmp_path / "small", tmp_path / ".small.staging"
    assert quantize(model, output, *FLAGS) == 0
    worked_on.clear()
    output.replace(staging)
    assert quantize(model, output, *FLAGS) == 0
    assert not worked_on
    assert content(output) == made


@pytest.mark.parametrize("change", ["flags", "name", "source", "file"])
def test_another_job_begins_anew(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    worked_on: list[str],
    change: str,
) -> None:
    """Of other flags, of a source that has changed; and where a file of it is gone, that file's tensors."""
    monkeypatch.setattr(writer, "SYNC_SECONDS", 0.0)
    whole, output = tmp_path / "whole", tmp_path / "small"
    whole.mkdir()
    for file in model.iterdir():
        (whole / file.name).write_bytes(file.read_bytes())
    killed_at(130, lambda: quantize(whole, output, *FLAGS))
    done = read_journal(tmp_path / ".small.staging" / JOURNAL_NAME)[1]
    assert 5 < len(done) < TENSORS
    flags, source = FLAGS, whole
    if change == "flags":
        flags = (*FLAGS, "--asymmetric")
    elif change == "name":
        source = tmp_path / "same"
        source.symlink_to(whole)
    elif change == "source":
        (whole / "model.safetensors").touch()
    else:
        (tmp_path / ".small.staging" / "model-00001-of-00003.safetensors").unlink()
    assert quantize(source, output, *flags) == 0
    if change == "file":
        assert TENSORS > len(worked_on) > TENSORS - len(done)
        assert not caplog.messages
    else:
        assert len(worked_on) == TENSORS
        assert "it is begun anew" in caplog.text
    assert quantize(source, tmp_path / "fresh", *flags) == 0
    assert content(output) == content(tmp_path / "fresh")


@pytest.mark.parametrize("change", ["weights", "config", "gone"])
def test_a_source_that_changes_meanwhile(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    worked_on: list[str],
    change: str,
) -> None:
    """Is refused when it is noticed, and nothing of it is used again, even where it changes back."""
    whole, output = tmp_path / "whole", tmp_path / "small"
    shutil.copytree(model, whole)
    changed = whole / ("config.json" if change == "config" else "model.safetensors")
    content_before, status = changed.read_bytes(), changed.stat()
    original = run.write_weights

    def meanwhile(*arguments: Any) -> Any:
        done = original(*arguments)
        if change == "gone":
            changed.unlink()
        elif change == "config":
            changed.write_bytes(content_before.replace(b"{", b'{"new": 1,', 1))
        else:
            os.utime(changed, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        return done

    with monkeypatch.context() as patch:
        patch.setattr(run, "write_weights", meanwhile)
        assert quantize(whole, output, *FLAGS) == 1
    said = capsys.readouterr().err
    assert f"{whole} was changed while it was quantised; what was made of it is deleted: give the command again" in said
    assert "is kept" not in said
    assert not (tmp_path / ".small.staging").exists()
    assert not output.exists()
    changed.write_bytes(content_before)
    os.utime(changed, ns=(status.st_atime_ns, status.st_mtime_ns))
    worked_on.clear()
    assert quantize(whole, output, *FLAGS) == 0
    assert len(worked_on) == TENSORS


@pytest.mark.parametrize("name", [JOURNAL_NAME, REPORT_NAME])
@pytest.mark.parametrize("damage", [b'{"fingerprint": "\xff\xfe"}\n', b"\x00\x00", b"[]"])
def test_damaged_notes_begin_anew(
    model: Path, made: dict[str, bytes], tmp_path: Path, worked_on: list[str], name: str, damage: bytes
) -> None:
    output, staging = tmp_path / "small", tmp_path / ".small.staging"
    assert quantize(model, output, *FLAGS) == 0
    output.replace(staging)
    (staging / name).write_bytes(damage)
    worked_on.clear()
    assert quantize(model, output, *FLAGS) == 0
    assert len(worked_on) == TENSORS
    assert content(output) == made


def test_a_journal_without_an_error_where_there_should_be_one(
    model: Path, made: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worked_on: list[str]
) -> None:
    """The tensor is done again."""
    monkeypatch.setattr(writer, "SYNC_SECONDS", 0.0)
    calls = disk_calls(lambda: quantize(model, tmp_path / "counted", *FLAGS))
    killed_at(calls // 2, lambda: quantize(model, tmp_path / "small", *FLAGS))
    journal = tmp_path / ".small.staging" / JOURNAL_NAME
    done = read_journal(journal)[1]
    without = [name for name, entry in done.items() if entry.error is not None]
    assert without
    journal.write_bytes(re.sub(rb'"error":[0-9.e-]+', b'"error":null', journal.read_bytes()))
    assert quantize(model, tmp_path / "small", *FLAGS) == 0
    assert set(without) <= set(worked_on)
    assert not (done.keys() - set(without)) & set(worked_on)
    assert content(tmp_path / "small") == made


def test_interrupted(
    model: Path,
    made: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    original = writer.compress

    def stopping(weight: Any, options: Any) -> Any:
        if weight.shape == (64, 96):
            raise KeyboardInterrupt
        return original(weight, options)

    monkeypatch.setattr(writer, "compress", stopping)
    assert quantize(model, tmp_path / "small", *FLAGS) == 130
    assert "stopped; what is complete is kept, the same command continues" in capsys.readouterr().err
    monkeypatch.undo()
    assert quantize(model, tmp_path / "small", *FLAGS) == 0
    assert content(tmp_path / "small") == made


def test_a_journal_is_read_as_far_as_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    assert read_journal(path) == (None, {})
    with Journal(path, "a", [Done("one", 1.0, 0.5)]) as journal:
        journal.append([Done("two", 2.0), Done("three", 3.0)])
    whole = path.read_bytes()
    assert read_journal(path) == (
        "a",
        {"one": Done("one", 1.0, 0.5), "two": Done("two", 2.0), "three": Done("three", 3.0)},
    )
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        fingerprint, done = read_journal(path)
        lines = whole[:cut].count(b"\n")
        assert len(done) == max(0, lines - 1)
        assert fingerprint == ("a" if cut >= whole.index(b"\n") else None)
    for damage in (b'"t\x00o"', b'"t\xffo"'):
        path.write_bytes(whole.replace(b'"two"', damage))
        assert read_journal(path)[1].keys() == {"one"}
    path.write_bytes(whole.replace(b'"a"', b'"\xff"'))
    assert read_journal(path) == (None, {})


def test_what_is_there_needs_no_space_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(writer, "SYNC_SECONDS", 0.0)
    calls = disk_calls(lambda: quantize(model, tmp_path / "counted", *FLAGS))
    killed_at(calls // 2, lambda: quantize(model, tmp_path / "small", *FLAGS))
    asked: list[int] = []
    monkeypatch.setattr(run, "require_space", lambda folder, nbytes, files: asked.append(nbytes))
    assert quantize(model, tmp_path / "small", *FLAGS) == 0
    assert quantize(model, tmp_path / "fresh", *FLAGS) == 0
    written = sum(file.stat().st_size for file in (tmp_path / "fresh").glob("*.safetensors"))
    assert asked[0] < asked[1] == written
    assert json.loads((tmp_path / "fresh" / "config.json").read_text())["quantization_config"]
