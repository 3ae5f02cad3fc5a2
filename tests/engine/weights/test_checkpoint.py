"""Broken model folders: each is recognised as what it is, and the message says what to do."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy
import pytest
import torch
from hub_support.tiny_model import make_model, tensors
from safetensors.numpy import load_file, save_file

from blade_llm.check.model import check_model
from blade_llm.models.config import load_model_config
from blade_llm.models.errors import ModelFilesError
from blade_llm.models.tensors import expected_tensors
from blade_llm.weights.checkpoint import check_tensors, open_checkpoint, unused_tensors
from blade_llm.weights.sources import SafetensorsWeights


def refused(folder: Path) -> str:
    with pytest.raises(ModelFilesError) as caught:
        open_checkpoint(folder)
    return str(caught.value)


def write_raw(path: Path, header: object, data: bytes = b"") -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.mark.parametrize("shards", [1, 3])
def test_every_tensor_is_found_where_its_bytes_are(tmp_path: Path, shards: int) -> None:
    checkpoint = open_checkpoint(make_model(tmp_path, shards=shards))
    assert len(checkpoint.files) == shards
    assert checkpoint.tensors.keys() == tensors().keys()
    for name, value in tensors().items():
        info = checkpoint.tensors[name]
        assert (info.dtype, info.shape, info.nbytes) == ("F32", value.shape, value.nbytes)
        assert info.file.read_bytes()[info.begin : info.end] == value.tobytes()
    assert checkpoint.total_bytes == sum(value.nbytes for value in tensors().values())


def test_a_single_file_is_preferred_and_other_copies_are_left_alone(tmp_path: Path) -> None:
    make_model(tmp_path, shards=2)
    make_model(tmp_path)
    (tmp_path / "consolidated.safetensors").write_bytes(b"")
    assert [file.name for file in open_checkpoint(tmp_path).files] == ["model.safetensors"]


def test_parts_without_an_index_are_read(tmp_path: Path) -> None:
    make_model(tmp_path, shards=3)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert open_checkpoint(tmp_path).tensors.keys() == tensors().keys()
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    assert "model-00002-of-00003.safetensors (one of 3 parts) is missing" in refused(tmp_path)


def test_missing_and_empty_folders(tmp_path: Path) -> None:
    assert refused(tmp_path / "none") == f"model folder {tmp_path / 'none'} does not exist"
    assert f"model folder {tmp_path} is empty" in refused(tmp_path)


def test_no_safetensors_names_what_is_there_instead(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert "holds no *.safetensors and no pytorch_model.bin;" in refused(tmp_path)
    (tmp_path / "consolidated.00.pth").touch()
    assert "(found consolidated.00.pth, which is not read)" in refused(tmp_path)


@pytest.mark.parametrize("left", [0, 5, 8, 100])
def test_truncated_inside_the_header(tmp_path: Path, left: int) -> None:
    path = make_model(tmp_path) / "model.safetensors"
    header = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    path.write_bytes(path.read_bytes()[:left])
    expected = header if left >= 8 else 8
    assert refused(tmp_path).endswith(
        f"is truncated: the header needs {expected} bytes, the file has {left}; download it again"
    )


def test_truncated_inside_the_data(tmp_path: Path) -> None:
    path = make_model(tmp_path, shards=2) / "model-00002-of-00002.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert refused(tmp_path) == (
        f"{path} is truncated: its header describes {len(whole)} bytes, the file has {len(whole) - 1}; "
        "download it again"
    )


def test_bytes_beyond_the_header_are_noticed(tmp_path: Path) -> None:
    path = make_model(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"x")
    assert "corrupt safetensors header (its tensors do not cover the" in refused(tmp_path)


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"not json at all", "corrupt safetensors header"),
        (b"[1, 2]", "corrupt safetensors header"),
        (b"\xff\xfe{}", "corrupt safetensors header"),
        (b"[" * 100_000, "corrupt safetensors header"),
        (b'{"a":' * 100_000, "corrupt safetensors header"),
        ({"a": {**ENTRY, "dtype": "F33"}}, "'a' has the unknown type 'F33'"),
        ({"a": {**ENTRY, "shape": [3]}}, "'a' takes 12 bytes as F32 [3], its offsets span 8"),
        ({"a": {**ENTRY, "shape": [-2]}}, "not a non-negative integer"),
        ({"a": {**ENTRY, "data_offsets": [0]}}, "corrupt safetensors header"),
        ({"a": {"dtype": "F32"}}, "corrupt safetensors header"),
        ({"a": 7}, "corrupt safetensors header"),
        (b'{"a":' + json.dumps(ENTRY).encode() + b',"a":' + json.dumps(ENTRY).encode() + b"}", "'a' stands twice"),
        ({"a": ENTRY, "b": ENTRY}, "do not cover the 8 bytes"),
    ],
)
def test_corrupt_headers(tmp_path: Path, header: object, reason: str) -> None:
    write_raw(tmp_path / "model.safetensors", header, bytes(8))
    message = refused(tmp_path)
    assert reason in message
    assert "download it again" in message


def test_not_safetensors_at_all(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x80\x02}q\x00(X\x05PK" * 100)
    assert "is not a safetensors file" in refused(tmp_path)


def test_a_git_lfs_pointer_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    assert "is a Git LFS pointer, not the weights; run `git lfs pull`" in refused(tmp_path)


def test_an_index_that_names_a_missing_file(tmp_path: Path) -> None:
    make_model(tmp_path, shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    assert "model-00002-of-00003.safetensors (named in model.safetensors.index.json) is missing" in refused(tmp_path)


def test_an_index_that_names_a_missing_tensor(tmp_path: Path) -> None:
    make_model(tmp_path, shards=2)
    part = tmp_path / "model-00001-of-00002.safetensors"
    weights = load_file(part)
    lost = sorted(weights)[0]
    del weights[lost]
    save_file(weights, part)
    assert f"says that tensor {lost!r} is in {part.name}, where it is not" in refused(tmp_path)


@pytest.mark.parametrize("text", ["", "{}", '{"weight_map": 1}', "[]"])
def test_an_index_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    assert "is not an index of weight files; download it again" in refused(tmp_path)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "x.bin"])
def test_an_index_cannot_point_elsewhere(tmp_path: Path, name: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    assert "which is not a *.safetensors file beside it" in refused(tmp_path)


def test_a_tensor_stored_twice(tmp_path: Path) -> None:
    save_file({"a": numpy.zeros(2)}, tmp_path / "one.safetensors")
    save_file({"a": numpy.zeros(2)}, tmp_path / "two.safetensors")
    assert "tensor 'a' is stored twice, in one.safetensors and in two.safetensors" in refused(tmp_path)


def problems(folder: Path) -> list[str]:
    return check_tensors(open_checkpoint(folder), expected_tensors(load_model_config(folder)))


def test_a_whole_model_has_no_problems(tmp_path: Path) -> None:
    assert problems(make_model(tmp_path)) == []


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    lost = [f"model.layers.1.self_attn.{name}_proj.weight" for name in "qkvo"]
    (found,) = problems(make_model(tmp_path, drop=lost))
    assert found.startswith(f"4 of 26 tensors are missing: {lost[0]}, {lost[1]}, {lost[2]} and 1 more;")


def test_an_untied_head_must_be_there(tmp_path: Path) -> None:
    (found,) = problems(make_model(tmp_path, tie_word_embeddings=False))
    assert "1 of 27 tensors are missing: lm_head.weight;" in found


def test_a_wrong_shape_says_both(tmp_path: Path) -> None:
    wrong = {"model.norm.weight": numpy.zeros(17, dtype=numpy.float32)}
    (found,) = problems(make_model(tmp_path, replace=wrong))
    assert found.startswith("wrong shape: model.norm.weight is [17] in model.safetensors, config.json asks for [16];")


def test_a_quantised_weight_is_refused(tmp_path: Path) -> None:
    wrong = {"model.norm.weight": numpy.zeros(16, dtype=numpy.int8)}
    (found,) = problems(make_model(tmp_path, replace=wrong))
    assert (
        found == "unsupported weight type: model.norm.weight is I8 in model.safetensors; supported are BF16, F16, F32"
    )


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_model(tmp_path)

    def forbidden(path: Path, *arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", forbidden)
    assert refused(tmp_path) == f"{tmp_path / 'model.safetensors'} cannot be read: Permission denied"
    monkeypatch.setattr(Path, "read_text", forbidden)
    with pytest.raises(ModelFilesError, match=r"config\.json cannot be read: Permission denied"):
        load_model_config(tmp_path)


def test_parts_that_were_swapped_are_noticed(tmp_path: Path) -> None:
    make_model(tmp_path, shards=2)
    one, two = (tmp_path / f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    message = refused(tmp_path)
    assert message.startswith(f"{tmp_path / 'model.safetensors.index.json'} says that tensor 'model.")
    assert "where it is not; index and files belong to different downloads: download the model again" in message


@pytest.mark.parametrize("value", [numpy.nan, numpy.inf, -numpy.inf])
def test_a_tensor_of_nan_is_named_when_it_is_read(tmp_path: Path, value: float) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    broken = tensors()[name]
    broken[3, 5] = value
    folder = make_model(tmp_path, shards=2, replace={name: broken})
    source = SafetensorsWeights(folder, load_model_config(folder), torch.device("cpu"), torch.float32)
    source.tensor("model.layers.0.mlp.down_proj.weight")
    with pytest.raises(ModelFilesError, match=rf"model-0000\d-of-00002.safetensors: tensor '{name}' holds NaN or inf"):
        source.stacked([name])


def test_tensors_that_nothing_takes_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    more = {name: numpy.zeros(2, dtype=numpy.float32) for name in ("model.vision.patch", "lm_head.weight")}
    folder = make_model(tmp_path, replace=more)
    config = load_model_config(folder)
    assert unused_tensors(open_checkpoint(folder), expected_tensors(config)) == (
        "1 tensor(s) are not used: model.vision.patch"
    )
    SafetensorsWeights(folder, config, torch.device("cpu"), torch.float32)
    assert "model.vision.patch" in caplog.text
    assert "model.vision.patch" in check_model(folder).detail


def test_a_gguf_copy_beside_the_weights_is_left_alone(tmp_path: Path) -> None:
    folder = make_model(tmp_path)
    (folder / "model.gguf").write_bytes(b"GGUF")
    assert [file.name for file in open_checkpoint(folder).files] == ["model.safetensors"]
