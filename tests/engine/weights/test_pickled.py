"""``.bin`` checkpoints: read without running anything of the pickle, and refused with its name where it has code."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import resource
import zipfile
from pathlib import Path

import numpy
import pytest
import torch
from hub_support.tiny_model import make_model, tensors

from blade_llm.models.config import load_model_config
from blade_llm.models.errors import ModelFilesError
from blade_llm.models.tensors import expected_tensors
from blade_llm.weights.checkpoint import check_tensors, open_checkpoint
from blade_llm.weights.pickled import _rebuild_tensor, _Storage
from blade_llm.weights.sources import SafetensorsWeights

CPU = torch.device("cpu")


def state_dict() -> dict[str, torch.Tensor]:
    return {name: torch.tensor(value) for name, value in tensors().items()}


def pickled(folder: Path, content: object | None = None) -> Path:
    """The tiny model with ``content`` as its only weights."""
    make_model(folder)
    (folder / "model.safetensors").unlink()
    torch.save(state_dict() if content is None else content, folder / "pytorch_model.bin")
    return folder


def in_parts(folder: Path) -> Path:
    pickled(folder)
    (folder / "pytorch_model.bin").unlink()
    weights, index = state_dict(), {}
    for number in (1, 2):
        name = f"pytorch_model-{number:05d}-of-00002.bin"
        part = {key: weights[key] for key in sorted(weights)[number - 1 :: 2]}
        torch.save(part, folder / name)
        index |= dict.fromkeys(part, name)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


def refused(folder: Path) -> str:
    with pytest.raises(ModelFilesError) as caught:
        open_checkpoint(folder)
    return str(caught.value)


@pytest.mark.parametrize("make", [pickled, in_parts])
def test_every_tensor_is_read(tmp_path: Path, make: object) -> None:
    folder = make(tmp_path)  # type: ignore[operator]
    checkpoint, config = open_checkpoint(folder), load_model_config(folder)
    assert check_tensors(checkpoint, expected_tensors(config)) == []
    source = SafetensorsWeights(folder, config, CPU, torch.float32)
    for name, value in tensors().items():
        assert checkpoint.tensors[name].shape == value.shape
        assert checkpoint.tensors[name].dtype == "F32"
        assert numpy.array_equal(source.tensor(name).numpy(), value)


def test_safetensors_are_preferred(tmp_path: Path) -> None:
    pickled(tmp_path)
    make_model(tmp_path)
    assert [file.name for file in open_checkpoint(tmp_path).files] == ["model.safetensors"]


def test_views_parameters_and_shared_storages_are_understood(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    content = {"t": base.t(), "part": base[1:3], "p": torch.nn.Parameter(base), "h": base.bfloat16(), "e": base[:0]}
    found = open_checkpoint(pickled(tmp_path, content)).tensors
    shapes = {name: (info.dtype, info.shape) for name, info in found.items()}
    assert shapes == {
        "t": ("F32", (6, 4)),
        "part": ("F32", (2, 6)),
        "p": ("F32", (4, 6)),
        "h": ("BF16", (4, 6)),
        "e": ("F32", (0, 6)),
    }


class Evil:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_pickle_is_named_and_never_run(tmp_path: Path, zipped: bool) -> None:
    marker = tmp_path / "ran"
    folder = pickled(tmp_path / "model", {**state_dict(), "extra": Evil(marker)})
    file = folder / "pytorch_model.bin"
    if not zipped:
        file.write_bytes(pickle.dumps(Evil(marker)))
    message = refused(folder)
    assert str(file) in message
    assert ("posix.system, which is code and is never run" if zipped else "plain pickle") in message
    assert "use the model's safetensors files" in message
    with pytest.raises(ModelFilesError):
        SafetensorsWeights(folder, load_model_config(folder), CPU, torch.float32)
    assert not marker.exists()


def test_no_state_dict(tmp_path: Path) -> None:
    assert "is no state dict" in refused(pickled(tmp_path, {"model": state_dict()}))
    assert "is no state dict" in refused(pickled(tmp_path, [1, 2]))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
        (b"PK\x03\x04 and no end", "is truncated"),
        (b"", "is not a file of torch.save"),
        (b"\x80\x02}q\x00.", "torch before 1.6"),
        (b"<html>", "is not a file of torch.save"),
    ],
)
def test_files_that_are_none(tmp_path: Path, content: bytes, reason: str) -> None:
    (pickled(tmp_path) / "pytorch_model.bin").write_bytes(content)
    assert reason in refused(tmp_path)


def test_a_truncated_file(tmp_path: Path) -> None:
    file = pickled(tmp_path) / "pytorch_model.bin"
    file.write_bytes(file.read_bytes()[:-100])
    assert refused(tmp_path) == (f"{file} is truncated: the end of its zip archive is missing; download it again")


def test_a_zip_without_the_data_of_a_tensor(tmp_path: Path) -> None:
    file = pickled(tmp_path, {"a": torch.ones(3), "b": torch.ones(4)}) / "pytorch_model.bin"
    with zipfile.ZipFile(file) as archive:
        kept = {
            info.filename: archive.read(info) for info in archive.infolist() if not info.filename.endswith("/data/1")
        }
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in kept.items():
            archive.writestr(name, data)
    assert "the data of tensor 'b' is not there or not 16 bytes long" in refused(tmp_path)


def test_a_tensor_that_reaches_beyond_its_storage(tmp_path: Path) -> None:
    file = pickled(tmp_path, {"a": torch.ones(3, 5)}) / "pytorch_model.bin"
    with zipfile.ZipFile(file) as archive:
        kept = {info.filename: archive.read(info) for info in archive.infolist()}
    name = next(name for name in kept if name.endswith("data.pkl"))
    assert kept[name].count(b"K\x03K\x05") == 1
    kept[name] = kept[name].replace(b"K\x03K\x05", b"K\x09K\x05")
    with zipfile.ZipFile(file, "w") as archive:
        for member, data in kept.items():
            archive.writestr(member, data)
    assert "tensor 'a' of shape [9, 5] reaches beyond its 15 stored elements" in refused(tmp_path)


def test_an_index_that_names_a_missing_part(tmp_path: Path) -> None:
    in_parts(tmp_path)
    (tmp_path / "pytorch_model-00002-of-00002.bin").unlink()
    message = refused(tmp_path)
    assert "pytorch_model-00002-of-00002.bin (named in pytorch_model.bin.index.json) is missing" in message


def with_pickle(folder: Path, content: bytes) -> Path:
    pickled(folder)
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", content)
    return folder


@pytest.mark.parametrize(
    "content",
    [b"}r\x00\xc2\xeb\x0b.", b"\x80\x05\x96" + (1 << 33).to_bytes(8, "little") + b"."],
    ids=["a memo of 200 million entries", "an array of 8 GiB"],
)
def test_a_short_pickle_takes_no_memory(tmp_path: Path, content: bytes) -> None:
    folder = with_pickle(tmp_path, content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.suppress(ModelFilesError):
        open_checkpoint(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 18  # KiB


@pytest.mark.parametrize("shape", [("ab", 2), (2.5, 2), (1 << 70, 2), (-1, 2)])
def test_a_shape_of_other_things_than_counts(tmp_path: Path, shape: tuple[object, ...]) -> None:
    stored = _Storage("F32", "0", 4)
    for arguments in ((stored, 0, shape, (1, 1)), (stored, 0, (1, 1), shape), (stored, shape[0], (1,), (1,))):
        with pytest.raises(pickle.UnpicklingError, match="not of numbers"):
            _rebuild_tensor(*arguments)  # type: ignore[arg-type]
    with pytest.raises(pickle.UnpicklingError, match="without a shape"):
        _rebuild_tensor(stored, 0, (1, 2), (1,))
