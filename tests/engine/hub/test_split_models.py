"""Models that were split ahead: downloads and ``blade_llm_fetch`` bring the folders of all ranks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_support.fake_hub import FakeHub, running_hub, sha256
from hub_support.tiny_model import make_model
from huggingface_hub import constants

from blade_llm.cli import fetch
from blade_llm.cli import split as split_cli
from blade_llm.hub import download as hub_download
from blade_llm.hub.materialize import MARKER, materialize
from blade_llm.hub.model import HubModel, Progress
from blade_llm.hub.resolve import resolve_model
from blade_llm.hub.wanted import wanted_files
from blade_llm.models.errors import ModelFilesError
from blade_llm.spec.shard import Shard
from blade_llm.weights.checkpoint import open_checkpoint, open_rank

REPO = "acme/split"
PART = "rank_1/model-00002-of-00002.safetensors"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model for two ranks, each with two files of weights and an index."""
    folder: Path = tmp_path_factory.mktemp("made")
    flags = ["--model", str(make_model(folder / "whole")), "--output_dir", str(folder / "split")]
    assert split_cli.main([*flags, "--tensor_parallel_size", "2", "--max_shard_size=6KB"]) == 0
    split = folder / "split"
    assert (split / PART).is_file()
    assert (split / "rank_0" / "model.safetensors.index.json").is_file()
    return split


@pytest.fixture
def hub(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with running_hub() as hub:
        template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(hub_download, "_wait", lambda seconds, stop: None)
        monkeypatch.setenv("BLADE_TERMINATION_LOG", str(tmp_path / "termination-log"))
        for name in ("HF_HOME", "HF_HUB_CACHE", "HF_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        hub.add(REPO, made)
        yield hub


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != MARKER)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def without(hub: FakeHub, *starts: str) -> None:
    hub.repositories[REPO] = {n: data for n, data in hub.repositories[REPO].items() if not n.startswith(starts)}


def test_a_download_has_the_folders_of_all_ranks_and_is_complete(hub: FakeHub, made: Path) -> None:
    hub.repositories[REPO] |= {"rank_0/optimizer.pt": b"x", "original/model.safetensors": b"x"}
    seen: list[Progress] = []
    folder = resolve_model(REPO, progress=seen.append)
    assert contents(folder) == contents(made)
    assert open_rank(folder, Shard(1, 2)).tensors.keys() == open_rank(made, Shard(1, 2)).tensors.keys()
    last = seen[-1]
    size = sum(map(len, {sha256(data): data for data in contents(made).values()}.values()))
    assert (last.done_bytes, last.total_bytes, last.files_done) == (size, size, last.files_total)
    requests = len(hub.requests)
    assert resolve_model(REPO) == folder
    assert len(hub.requests) == requests


def test_the_file_of_a_rank_is_continued_and_compared_with_its_checksum(hub: FakeHub, made: Path) -> None:
    storage = f"/storage/{sha256((made / PART).read_bytes())}"
    hub.fault(storage, cut_after=300)
    hub.fault(storage, corrupt=True)
    assert contents(resolve_model(REPO)) == contents(made)
    ranges = [request.range for request in hub.asked(storage)]
    assert ranges == [None, "bytes=300-", None]


def test_a_snapshot_without_a_ranks_file_is_completed(hub: FakeHub, made: Path) -> None:
    folder = resolve_model(REPO)
    (folder / PART).unlink()
    assert contents(resolve_model(REPO)) == contents(made)


def test_fetch_makes_an_ordinary_folder_of_it(
    hub: FakeHub, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "volume" / "split"
    assert fetch.main(["--model", f"hf://{REPO}", "--output_dir", str(output)]) == 0
    assert contents(output) == contents(made)
    assert not any(path.is_symlink() for path in output.rglob("*"))
    assert capsys.readouterr().out.splitlines()[-1] == str(output)
    report = json.loads((tmp_path / "termination-log").read_bytes())
    marker = (output / MARKER).stat().st_size
    files = contents(made)
    assert (report["files"], report["bytes"]) == (len(files) + 1, sum(map(len, files.values())) + marker)
    requests = len(hub.requests)
    assert materialize(f"hf://{REPO}", output) == output
    assert len(hub.requests) == requests


def test_fetch_makes_a_folder_with_a_damaged_rank_anew(hub: FakeHub, made: Path, tmp_path: Path) -> None:
    output = materialize(REPO, tmp_path / "volume" / "split")
    shutil.rmtree(output / "rank_1")
    assert contents(materialize(REPO, output)) == contents(made)


def test_fetch_copies_a_local_split_folder_but_nothing_else_in_it(made: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(made, source)
    (source / "rank_0" / "notes.txt").write_text("x")
    (source / "checkpoints").mkdir()
    (source / "checkpoints" / "model.safetensors").write_bytes(b"x")
    output = materialize(str(source), tmp_path / "volume" / "split")
    assert contents(output) == contents(made)
    assert open_checkpoint(output, 2).tensors.keys() == open_checkpoint(made, 2).tensors.keys()


def test_a_local_folder_whose_rank_is_not_whole_is_refused_and_leaves_nothing(made: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(made, source)
    (source / PART).write_bytes(b"x")
    with pytest.raises(ModelFilesError, match="of rank 1 has 1 bytes instead of"):
        materialize(str(source), tmp_path / "volume" / "split")
    assert not (tmp_path / "volume" / "split").exists()


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        (("rank_1/",), "rank_1/blade_rank.json"),
        (("rank_0/blade_rank.json",), "rank_0/blade_rank.json"),
        (("rank_",), "rank_0/blade_rank.json"),
    ],
)
def test_a_repository_without_the_part_of_a_rank_is_refused_before_the_download(
    hub: FakeHub, missing: tuple[str, ...], named: str
) -> None:
    without(hub, *missing)
    with pytest.raises(ModelFilesError, match=rf"{named} is missing there: .*; upload {named.partition('/')[0]} again"):
        resolve_model(REPO)
    assert hub.asked("/resolve/") == []


@pytest.mark.parametrize("name", ["rank_0/../../x", "rank_00/model.safetensors", "rank_0/sub/model.safetensors"])
def test_other_files_in_folders_of_such_names_are_left_out(made: Path, name: str) -> None:
    names = [*contents(made), name, "model.safetensors"]
    wanted: list[Any] = wanted_files(names, HubModel(REPO))
    assert wanted == sorted(contents(made))
