"""``blade_llm_split``: what it refuses, what it keeps of a run that was stopped, what it says of damaged parts, and
how little memory it takes."""

from __future__ import annotations

import hashlib
import json
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.tiny_models import save_model
from safetensors.torch import load_file

from blade_llm.check.model import check_model
from blade_llm.cli import split as cli
from blade_llm.cli.split import main
from blade_llm.models.config import ModelConfig, load_model_config
from blade_llm.models.errors import ModelFilesError
from blade_llm.models.sharding import shard_model
from blade_llm.spec.slices import Slice
from blade_llm.weights.checkpoint import Checkpoint, open_checkpoint
from blade_llm.weights.sources import SafetensorsWeights
from blade_llm.weights.split import chunks, divide, space
from blade_llm.weights.split.manifest import RANK_NAME, SPLIT_NAME

QUERY = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("whole")
    save_model(folder, "qwen2")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    (folder / ".hidden").write_text("x")
    (folder / "flax_model.msgpack").write_text("x")
    return folder


@pytest.fixture(scope="module")
def made(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("made") / "split"
    assert split(model, folder) == 0
    return folder


@pytest.fixture
def parts(made: Path, tmp_path: Path) -> Path:
    """A copy of the split model, to be damaged."""
    shutil.copytree(made, tmp_path / "split")
    return tmp_path / "split"


def split(model: Path, output_dir: Path, *more: str, size: int = 2) -> int:
    flags = ["--tensor_parallel_size", str(size), "--output_dir", str(output_dir), "--max_shard_size=100KB"]
    return main(["--model", str(model), *flags, *more])


def join(parts: Path, output_dir: Path) -> int:
    return main(["--model", str(parts), "--reverse", "--output_dir", str(output_dir)])


def source(folder: Path, rank: int, size: int = 2) -> SafetensorsWeights:
    config: ModelConfig = load_model_config(folder)
    return SafetensorsWeights(folder, shard_model(config, rank, size), torch.device("cpu"), torch.float32)


def sums(folder: Path) -> dict[str, str]:
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def times(folder: Path) -> dict[str, int]:
    return {str(file.relative_to(folder)): file.stat().st_mtime_ns for file in folder.rglob("*.safetensors")}


def test_what_is_in_the_folder(model: Path, made: Path) -> None:
    assert {file.name for file in made.iterdir()} == {
        *("config.json", "generation_config.json", "tokenizer.json", "1_Pooling"),
        *(SPLIT_NAME, "rank_0", "rank_1"),
    }
    for rank in range(2):
        files = sorted((made / f"rank_{rank}").glob("*.safetensors"))
        assert len(files) > 1
        assert all(file.stat().st_size < 110_000 for file in files)
        index = json.loads((made / f"rank_{rank}" / "model.safetensors.index.json").read_text())
        there = {name: file.name for file in files for name in load_file(file)}
        assert index["weight_map"] == there
        manifest = json.loads((made / f"rank_{rank}" / RANK_NAME).read_text())
        own = sums(made / f"rank_{rank}")
        assert {name: file["sha256"] for name, file in manifest["files"].items()} == {
            name: digest for name, digest in own.items() if name != RANK_NAME
        }
    described = json.loads((made / SPLIT_NAME).read_text())
    assert described["tensor_parallel_size"] == 2
    assert [file["name"] for file in described["source"]] == ["model.safetensors"]
    assert described["tensors"][QUERY]["shape"] == [64, 64]
    assert described["tensors"][QUERY]["ranks"] == [{"rows": [[0, 32]]}, {"rows": [[32, 64]]}]


def test_the_check_and_the_server_see_the_whole_model(model: Path, made: Path) -> None:
    whole, found = open_checkpoint(model), open_checkpoint(made)
    assert {name: info.shape for name, info in found.tensors.items()} == {
        name: info.shape for name, info in whole.tensors.items()
    }
    assert found.total_bytes == whole.total_bytes
    assert {file.parent.name for file in found.files} == {"rank_0", "rank_1"}


def test_a_block_within_the_part_and_one_beyond(model: Path, made: Path) -> None:
    whole = load_file(model / "model.safetensors")[QUERY]
    own = source(made, 1)
    assert torch.equal(own.tensor(QUERY, Slice(rows=range(32, 64))), whole[32:])
    assert torch.equal(own.tensor(QUERY, Slice(rows=range(40, 50))), whole[40:50])
    for block in (None, Slice(rows=range(31, 64)), Slice(rows=range(32))):
        with pytest.raises(ModelFilesError, match=rf"rank_1.*has not the part of '{QUERY}' that is needed"):
            own.tensor(QUERY, block)
    with pytest.raises(ModelFilesError, match="has not the part of"):
        own.stacked([QUERY, QUERY])


@pytest.mark.parametrize("size", [1, 4])
def test_another_number_of_ranks_is_refused(made: Path, size: int) -> None:
    with pytest.raises(ModelFilesError, match=f"split for --tensor_parallel_size 2, not {size}; give") as error:
        source(made, 0, size)
    assert "\n" not in str(error.value)


def test_a_rank_needs_no_folder_but_its_own(parts: Path) -> None:
    shutil.rmtree(parts / "rank_0")
    source(parts, 1)
    for read in (lambda: source(parts, 0), lambda: open_checkpoint(parts)):
        with pytest.raises(ModelFilesError, match=r"the part of rank 0 is missing \(rank_0\)"):
            read()


def test_missing_short_and_foreign_parts_are_named_by_rank(model: Path, parts: Path, tmp_path: Path) -> None:
    first, *_, last = sorted((parts / "rank_1").glob("*.safetensors"))
    content = last.read_bytes()
    last.write_bytes(content[:-1])
    with pytest.raises(ModelFilesError, match=f"rank_1/{last.name} of rank 1 has {len(content) - 1} bytes instead"):
        open_checkpoint(parts)
    last.write_bytes(content)
    first.unlink()
    with pytest.raises(ModelFilesError, match=f"rank_1/{first.name} of rank 1 is missing"):
        source(parts, 1)
    source(parts, 0)
    shutil.rmtree(parts / "rank_1")
    shutil.copytree(parts / "rank_0", parts / "rank_1")
    with pytest.raises(ModelFilesError, match=r"rank_1 is not the part of rank 1 .*\(it is of rank 0,"):
        source(parts, 1)
    assert split(model, tmp_path / "four", size=4) == 0
    shutil.rmtree(parts / "rank_1")
    shutil.copytree(tmp_path / "four" / "rank_1", parts / "rank_1")
    with pytest.raises(ModelFilesError, match="or of another split"):
        source(parts, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found.update(format=2), "has format 2, this version reads 1"),
        (lambda found: found.pop("tensors"), "is damaged"),
        (lambda found: found["tensors"][QUERY].update(ranks=[{}]), "makes no sense"),
        (lambda found: found["tensors"][QUERY].update(ranks=[{}, {"rows": [[0, 65]]}]), "makes no sense"),
        (lambda found: found["tensors"][QUERY].update(dtype="F33"), "makes no sense"),
    ],
)
def test_a_damaged_description(parts: Path, change: Any, message: str) -> None:
    found = json.loads((parts / SPLIT_NAME).read_text())
    change(found)
    (parts / SPLIT_NAME).write_text(json.dumps(found))
    with pytest.raises(ModelFilesError, match=message):
        open_checkpoint(parts)


def test_a_damaged_file_is_named_when_joined_and_written_again_when_split(
    model: Path, parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, written = sums(parts), times(parts)
    file = sorted((parts / "rank_1").glob("*.safetensors"))[0]
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    assert join(parts, tmp_path / "joined") == 1
    assert f"rank_1/{file.name} of rank 1 is damaged" in capsys.readouterr().err
    assert not (tmp_path / "joined").exists()
    assert not (tmp_path / ".joined.staging").exists()
    assert split(model, parts) == 0
    assert sums(parts) == before
    changed = {name for name, time in times(parts).items() if written[name] != time}
    assert changed == {name for name in written if name.startswith("rank_1")}
    (tmp_path / "joined").mkdir()
    assert join(parts, tmp_path / "joined") == 0
    assert sums(tmp_path / "joined").keys() == {
        *("config.json", "generation_config.json", "tokenizer.json", "1_Pooling/config.json", "model.safetensors"),
    }


def test_a_stopped_run_goes_on_where_it_was(
    model: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "split"
    output.mkdir()
    (output / f".{SPLIT_NAME}.staging").write_text("stopped as early as can be")
    original, written = chunks.part_chunks, 0

    def stopping(*arguments: Any) -> Any:
        nonlocal written
        written += 1
        if written == 60:  # of 39 tensors for each rank
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(divide, "part_chunks", stopping)
    assert split(model, output) == 130
    assert "the same command continues" in capsys.readouterr().err
    assert (output / "rank_0" / RANK_NAME).exists()
    assert any((output / "rank_1").iterdir())
    with pytest.raises(ModelFilesError, match="the part of rank 1 is not complete"):
        open_checkpoint(output)
    before = times(output / "rank_0")
    monkeypatch.undo()
    assert split(model, output) == 0
    assert times(output / "rank_0") == before
    assert sums(output) == sums(made)
    complete = times(output)
    assert split(model, output) == 0
    assert times(output) == complete


def test_a_disk_that_is_too_small(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(space.shutil, "disk_usage", lambda folder: usage._replace(free=100_000))
    assert split(model, tmp_path / "split") == 1
    assert "MB and its disk has 0.1 MB free: 0." in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.safetensors"))


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    try:
        code: Any = main(arguments)
    except SystemExit as error:
        code = error.code
    assert code in (1, 2)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("blade_llm_split: ")
    return said


def test_what_is_refused(
    model: Path, made: Path, parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "notes").write_text("mine")
    to, new = ["--output_dir"], str(tmp_path / "new")
    whole, split_already = ["--model", str(model)], ["--model", str(made)]
    cases = [
        ([*whole, *to, new], "--tensor_parallel_size is missing"),
        ([*whole, *to, new, "-tp", "1"], "--tensor_parallel_size 1 is the whole model"),
        ([*whole, *to, new, "-tp", "3"], "--tensor_parallel_size 3 does not divide the model's 8 attention heads"),
        ([*whole, *to, new, "-tp", "2", "--max_shard_size", "0"], "--max_shard_size 0 holds nothing"),
        ([*whole, *to, str(full), "-tp", "2"], "is not empty and was not made by blade_llm_split"),
        ([*whole, *to, str(parts), "-tp", "4"], "holds a split for --tensor_parallel_size 2, not 4"),
        ([*split_already, *to, new, "-tp", "2"], "is split already, for --tensor_parallel_size 2"),
        ([*split_already, *to, new, "-tp", "4", "--reverse"], "split for --tensor_parallel_size 2, not 4"),
        ([*split_already, *to, str(full), "--reverse"], "is not empty"),
        ([*whole, *to, new, "--reverse"], "was not made by blade_llm_split"),
        (["--model", str(tmp_path / "nowhere"), *to, new, "-tp", "2"], "nowhere"),
    ]
    for arguments, message in cases:
        assert message in refused(arguments, capsys), arguments
    assert (full / "notes").exists()
    changed = tmp_path / "changed"
    shutil.copytree(model, changed)
    (changed / "model.safetensors").touch()
    said = refused(["--model", str(changed), *to, str(parts), "-tp", "2"], capsys)
    assert "holds a split of another model, or of one that has changed since" in said


def test_gguf_files_are_refused_by_name(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "open_checkpoint", lambda folder: Checkpoint((folder / "model.gguf",), {}))
    said = refused(["--model", str(model), "-tp", "2", "--output_dir", str(tmp_path / "new")], capsys)
    assert "GGUF files cannot be split; take the model's safetensors files" in said


def test_memory_is_a_chunk_or_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is allocated while 12 MB are split and joined in chunks of 64 KiB."""
    save_model(tmp_path / "whole", "qwen2", vocab_size=20_000)
    assert split(tmp_path / "whole", tmp_path / "warm") == 0  # imports
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 64 << 10)
    monkeypatch.setattr("blade_llm.weights.split.writer._HASH_BYTES", 64 << 10)

    def peak(call: Any, *arguments: Any) -> int:
        tracemalloc.start()
        try:
            assert call(*arguments) == 0
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(split, tmp_path / "whole", tmp_path / "split") < (2 << 20)
    assert peak(join, tmp_path / "split", tmp_path / "joined") < (2 << 20)


def test_the_check_passes_a_split_model(made: Path) -> None:
    """But for the tokenizer, which the tiny model has none of."""
    detail = check_model(made, tensor_parallel_size=2).detail
    assert "tensors are missing" not in detail
    assert "wrong shape" not in detail
