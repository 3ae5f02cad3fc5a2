"""Where split and joined folders go: new ones, mount points, symbolic links; and runs that were killed there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from engine_support.killed import disk_calls, killed_at
from engine_support.tiny_models import save_model

from blade_llm.cli.split import main
from blade_llm.weights.split.output import JoinOutput, SplitOutput

COMMON = ("--max_shard_size", "100KB")
STAGING, LOCK = ".blade_join.staging", ".blade_join.lock"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("whole")
    save_model(folder, "qwen2")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def made(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("made") / "split"
    assert split(model, folder) == 0
    return folder


@pytest.fixture(scope="module")
def joined(made: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder: Path = tmp_path_factory.mktemp("joined") / "whole"
    assert join(made, folder) == 0
    return content(folder)


def split(model: Path, output: Path) -> int:
    return main(["--model", str(model), "-tp", "2", "--output_dir", str(output), *COMMON])


def join(parts: Path, output: Path) -> int:
    return main(["--model", str(parts), "--reverse", "--output_dir", str(output), *COMMON])


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def volume(path: Path) -> Path:
    """An empty folder as a new disk's mount point is."""
    (path / "lost+found").mkdir(parents=True)
    return path


def test_a_folder_that_exists_is_filled_and_not_replaced(
    model: Path, made: Path, joined: dict[str, bytes], tmp_path: Path
) -> None:
    for output in (volume(tmp_path / "split"), volume(tmp_path / "whole")):
        before = output.stat().st_ino
        assert (split(model, output) if output.name == "split" else join(made, output)) == 0
        assert output.stat().st_ino == before
        expected = content(made) if output.name == "split" else joined
        assert content(output) == expected
        assert {file.name for file in output.iterdir()} - {Path(name).parts[0] for name in expected} == {"lost+found"}
    assert not list(tmp_path.glob(".whole*"))


def test_a_symbolic_link_stays_one(
    model: Path, made: Path, joined: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """To a folder, and to where one is to be."""
    for call, source, expected in ((split, model, content(made)), (join, made, joined)):
        for target in (volume(tmp_path / call.__name__ / "disk"), tmp_path / call.__name__ / "deep" / "new"):
            link = tmp_path / f"{call.__name__}-{target.name}"
            link.symlink_to(target)
            assert call(source, link) == 0
            assert link.readlink() == target
            assert content(target) == expected
            assert capsys.readouterr().out == f"{link}\n"


def test_nothing_is_written_beside_a_mount_point(
    model: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its parent cannot be written, as in a container whose own disk is read-only."""
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path and access(path, mode))
    for call, source in ((split, model), (join, made)):
        output = volume(tmp_path / call.__name__)
        assert call(source, output) == 0
        assert not {file.name for file in output.iterdir() if file.name.startswith(".blade")}
    assert {file.name for file in tmp_path.iterdir()} == {"split", "join"}
    assert SplitOutput.at(tmp_path / "split").lock.parent == tmp_path / "split"


@pytest.mark.parametrize("inside", [pytest.param(True, marks=pytest.mark.soak), False])
def test_killed_anywhere_a_joined_folder_is_not_loadable_and_the_next_run_completes_it(
    made: Path, joined: dict[str, bytes], tmp_path: Path, inside: bool
) -> None:
    def output_of(name: str) -> Path:
        return volume(tmp_path / name) if inside else tmp_path / name

    counted = output_of("counted")
    calls = disk_calls(lambda: join(made, counted))
    assert content(counted) == joined
    moved = 0
    for place in range(1, calls + 1):
        output = output_of(str(place))
        killed_at(place, lambda output=output: join(made, output))  # type: ignore[misc]
        if (output / "config.json").exists():
            assert {file for file in joined if not (output / file).is_file()} == set()
        staged = JoinOutput.at(output).staging.exists()
        moved += staged and (output / "generation_config.json").exists()
        if staged or not output.exists():
            assert join(made, output) == 0
        assert content(output).items() >= joined.items(), place
        assert not JoinOutput.at(output).staging.exists()
    assert not inside or moved


def test_what_another_join_put_in_place_is_left(
    made: Path, joined: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = volume(tmp_path / "whole")
    (output / STAGING).mkdir()
    (output / STAGING / ".blade_join").write_text("of something else")
    (output / "model.safetensors").write_text("mine")
    assert join(made, output) == 1
    assert f"{output} is not empty; delete it or give another --output_dir" in capsys.readouterr().err
    assert (output / "model.safetensors").read_text() == "mine"
    (output / "model.safetensors").unlink()
    assert join(made, output) == 0
    assert content(output) == joined


@pytest.mark.parametrize("kind", ["link", "folder", "file"])
@pytest.mark.parametrize("inside", [True, False])
def test_a_staging_folder_of_somebody_else(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, inside: bool
) -> None:
    foreign, output = tmp_path / "foreign", tmp_path / "whole"
    foreign.mkdir()
    (foreign / "notes").write_text("mine")
    if inside:
        output.mkdir()
    staging = JoinOutput.at(output).staging
    if kind == "link":
        staging.symlink_to(foreign)
    elif kind == "folder":
        shutil.copytree(foreign, staging)
    else:
        staging.write_text("mine")
    assert join(made, output) == 1
    assert f"{staging} is where the work would go and was not made by blade_llm_split" in capsys.readouterr().err
    assert (foreign / "notes").read_text() == "mine"
    assert staging.is_file() or (staging / "notes").read_text() == "mine"


def test_a_folder_that_fills_meanwhile_is_not_overwritten(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from blade_llm.weights.split import join as module

    output = volume(tmp_path / "whole")
    original = module.copy_side_files

    def meanwhile(folder: Path, target: Path) -> None:
        (output / "config.json").write_text("mine")
        original(folder, target)

    monkeypatch.setattr(module, "copy_side_files", meanwhile)
    assert join(made, output) == 1
    assert f"{output} is not empty" in capsys.readouterr().err
    assert (output / "config.json").read_text() == "mine"
    assert not (output / STAGING).exists()
