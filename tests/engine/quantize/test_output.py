"""Where a quantised checkpoint is staged, and how it gets to its place: new folders, mount points, symbolic links."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from engine_support.killed import disk_calls, killed_at
from engine_support.quantize_runs import BLOCKS, SIZES, content, quantize
from engine_support.tiny_models import save_model

from blade_llm.models.errors import ModelFilesError
from blade_llm.quantize import run, writer
from blade_llm.quantize.journal import JOURNAL_NAME
from blade_llm.quantize.output import OutputFolder
from blade_llm.quantize.report import REPORT_NAME

FLAGS = (*BLOCKS, "--max_shard_size", "40KB")
STAGING, LOCK = ".blade_quantize.staging", ".blade_quantize.lock"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("whole")
    save_model(folder, "llama", torch.bfloat16, **SIZES)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def made(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder: Path = tmp_path_factory.mktemp("made") / "small"
    assert quantize(model, folder, *FLAGS) == 0
    return content(folder)


def volume(path: Path) -> Path:
    """An empty folder as a new disk's mount point is."""
    (path / "lost+found").mkdir(parents=True)
    return path


def test_a_folder_that_exists_is_filled_and_not_replaced(model: Path, made: dict[str, bytes], tmp_path: Path) -> None:
    output = volume(tmp_path / "small")
    before = output.stat().st_ino
    assert quantize(model, output, *FLAGS) == 0
    assert output.stat().st_ino == before
    assert content(output) == made
    assert {file.name for file in output.iterdir()} - {Path(name).parts[0] for name in made} == {"lost+found"}
    assert list(tmp_path.iterdir()) == [output]


def test_a_symbolic_link_stays_one(
    model: Path, made: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """To a folder, and to where one is to be."""
    for target in (volume(tmp_path / "disk"), tmp_path / "deep" / "new"):
        link = tmp_path / f"to-{target.name}"
        link.symlink_to(target)
        assert quantize(model, link, *FLAGS) == 0
        assert link.readlink() == target
        assert content(target) == made
        assert capsys.readouterr().out == f"{link}\n"
    assert {file.name for file in tmp_path.iterdir()} == {"disk", "deep", "to-disk", "to-new"}


def test_space_is_compared_on_the_disk_that_is_written(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = volume(tmp_path / "disk")
    (tmp_path / "link").symlink_to(disk)
    asked: list[Path] = []
    monkeypatch.setattr(run, "require_space", lambda folder, nbytes, files: asked.append(folder))
    for output in (disk, tmp_path / "link", disk / "new", tmp_path / "new"):
        assert quantize(model, output) == 0
        for file in disk.iterdir():
            shutil.rmtree(file) if file.is_dir() else file.unlink()
    assert asked == [disk, disk, disk, tmp_path]


@pytest.mark.parametrize(
    "seconds", [pytest.param(0.0, id="each tensor"), pytest.param(1e9, id="each file", marks=pytest.mark.soak)]
)
def test_killed_anywhere_a_folder_is_not_loadable_and_the_run_goes_on(
    model: Path, made: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(writer, "SYNC_SECONDS", seconds)
    calls = disk_calls(lambda: quantize(model, volume(tmp_path / "counted"), *FLAGS))
    moved = 0
    for place in sorted({*range(1, calls, calls // 6), *range(calls - 16, calls + 1)}):
        output = volume(tmp_path / str(place))
        killed_at(place, lambda output=output: quantize(model, output, *FLAGS))  # type: ignore[misc]
        if (output / "config.json").exists():
            assert {file for file in made if not (output / file).is_file()} == set()
        moved += (output / "model-00001-of-00003.safetensors").exists()
        if (output / STAGING).exists():
            assert quantize(model, output, *FLAGS) == 0
        assert content(output) in (made, {**made, LOCK: b""}), place
        assert not (output / STAGING).exists()
    assert moved > 5


def test_a_volume_that_holds_something_half_moved_of_another_job(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told from what may be continued, and left as it is."""
    output = volume(tmp_path / "small")
    assert quantize(model, output, *FLAGS) == 0
    (output / STAGING).mkdir()
    for name in (REPORT_NAME, "config.json"):
        (output / name).replace(output / STAGING / name)
    before = {file: file.stat().st_ino for file in output.rglob("*")}
    assert quantize(model, output, *FLAGS, "--asymmetric") == 1
    assert "is not empty; delete it or give another --output_dir" in capsys.readouterr().err
    assert {file: file.stat().st_ino for file in output.rglob("*") if file.name != LOCK} == before
    (output / "config.json").write_text("mine")
    assert quantize(model, output, *FLAGS) == 1
    assert (output / "config.json").read_text() == "mine"
    (output / "config.json").unlink()
    assert quantize(model, output, *FLAGS) == 0
    assert not (output / STAGING).exists()


def test_a_folder_that_fills_meanwhile_is_not_overwritten(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = volume(tmp_path / "small")
    original = run._write_others

    def meanwhile(*arguments: object) -> object:
        (output / "config.json").write_text("mine")
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(run, "_write_others", meanwhile)
    assert quantize(model, output, *FLAGS) == 1
    assert f"{output} is not empty" in capsys.readouterr().err
    assert (output / "config.json").read_text() == "mine"


@pytest.mark.parametrize("kind", ["link", "folder", "file"])
@pytest.mark.parametrize("inside", [True, False])
def test_a_staging_folder_of_somebody_else(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, inside: bool
) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "notes").write_text("mine")
    if inside:
        (tmp_path / "small").mkdir()
    output = OutputFolder.at(tmp_path / "small")
    if kind == "link":
        (foreign / JOURNAL_NAME).write_text("")  # what it leads to may even look like ours
        output.staging.symlink_to(foreign)
    elif kind == "folder":
        foreign.replace(output.staging)
        foreign = output.staging
    else:
        output.staging.write_text("mine")
    assert quantize(model, tmp_path / "small") == 1
    said = capsys.readouterr().err
    assert f"{output.staging} is where the work would go and was not made by blade_llm_quantize; move it away" in said
    assert (foreign / "notes").read_text() == "mine"
    assert not list(tmp_path.rglob("*.safetensors"))


def test_what_cannot_be_deleted_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = OutputFolder.at(tmp_path / "small")
    output.staging.mkdir()
    (output.staging / JOURNAL_NAME).write_text("")
    output.require_usable(whole=False)

    def refuse(*arguments: object, **named: object) -> None:
        raise PermissionError("not yours")

    with monkeypatch.context() as patch:
        patch.setattr("os.unlink", refuse)
        with pytest.raises(PermissionError):
            output.discard()
    output.discard()
    assert not output.staging.exists()


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "small").write_text("mine")
    with pytest.raises(ModelFilesError, match="is not empty"):
        OutputFolder.at(tmp_path / "small").require_usable(whole=True)
