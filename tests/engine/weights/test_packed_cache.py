"""Packed weights on disk: written once, found again, never believed when they are not whole or not of this model."""

from __future__ import annotations

import fcntl
import gc
import hashlib
import os
import threading
from pathlib import Path

import msgspec
import numpy
import pytest
import torch
from engine_support.packed_starts import keep_small_models, names_read
from hub_support.tiny_model import make_model, tensors
from safetensors.numpy import save_file

from blade_llm.kernels.linear.native import NativeLinear
from blade_llm.models.config import ModelConfig, load_model_config
from blade_llm.models.decoder import Decoder
from blade_llm.models.sharding import shard_model
from blade_llm.models.tensors import expected_tensors
from blade_llm.runner.kv_quant import with_kv_quant
from blade_llm.weights import sources
from blade_llm.weights.loader import load_model
from blade_llm.weights.packed_cache import file as packed_file
from blade_llm.weights.packed_cache import folder, loading
from blade_llm.weights.packed_cache.folder import packed_cache
from blade_llm.weights.packed_cache.sources import WritingSource
from blade_llm.weights.sources import SafetensorsWeights

CPU, BF16 = torch.device("cpu"), torch.bfloat16
LIMIT = 1 << 40

pytestmark = pytest.mark.skipif(not loading.can_be_kept(CPU, BF16), reason="no native kernels on this CPU")


@pytest.fixture(autouse=True)
def small_models_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of any size are kept, and a test goes on when a file is complete."""
    keep_small_models(monkeypatch)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path / "model", shards=2)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "packed"


def load(
    model: Path, cache: Path | None, limit: int = LIMIT, config: ModelConfig | None = None, **options: object
) -> Decoder:
    return load_model(
        model,
        config or load_model_config(model),
        load_format="auto",
        max_positions=32,
        device=CPU,
        dtype=BF16,
        packed_cache=None if cache is None else (cache, limit),
        **options,  # type: ignore[arg-type]
    )


def linears(model: Decoder) -> list[NativeLinear]:
    layers = [[each.attention.qkv, each.attention.output, each.mlp.up, each.mlp.down] for each in model.layers]
    found = [linear.packed for linear in [*(each for layer in layers for each in layer), model.head]]
    assert all(isinstance(linear, NativeLinear) for linear in found)
    return found  # type: ignore[return-value]


def assert_equal(found: Decoder, expected: Decoder) -> None:
    assert torch.equal(found.embedding, expected.embedding)
    assert torch.equal(found.norm.weight, expected.norm.weight)
    for one, other in zip(linears(found), linears(expected), strict=True):
        assert (one.outputs, one.inputs, one.form) == (other.outputs, other.inputs, other.form)
        assert one.deterministic == other.deterministic
        for part, wanted in zip(one.parts, other.parts, strict=True):
            assert torch.equal(part, wanted)
        row = torch.ones(1, one.inputs, dtype=BF16)
        assert torch.equal(one(row), other(row))


def files(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.p*"))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the tensors that are read from the model's files."""
    return names_read(monkeypatch)


@pytest.mark.parametrize(
    "options", [{}, {"quant": "int8"}, {"quant": "int4", "deterministic": True}], ids=["bf16", "int8", "int4"]
)
def test_a_second_start_reads_the_same_numbers_from_the_packed_file(
    model: Path, cache: Path, counted: list[str], options: dict[str, object]
) -> None:
    expected = load(model, None, **options)
    assert_equal(load(model, cache, **options), expected)
    assert len(files(cache)) == 1
    del counted[:]
    assert_equal(load(model, cache, **options), expected)
    assert counted == [], "even the embedding and the norms are there, for they were converted to bf16"


def test_what_the_models_files_hold_as_it_is_computed_in_is_not_stored_again(
    tmp_path: Path, cache: Path, counted: list[str]
) -> None:
    from safetensors.torch import save_file

    model = make_model(tmp_path / "model")
    save_file({name: torch.tensor(value).bfloat16() for name, value in tensors().items()}, model / "model.safetensors")
    expected = load(model, None)
    load(model, cache)
    del counted[:]
    assert_equal(load(model, cache), expected)
    assert set(counted) == {name for name in tensors() if "norm" in name or "embed" in name}


def test_other_settings_and_other_content_have_files_of_their_own(tmp_path: Path, model: Path, cache: Path) -> None:
    load(model, cache)
    load(model, cache, quant="int8")
    assert len(files(cache)) == 2
    changed = {"model.layers.0.mlp.up_proj.weight": tensors()["model.layers.0.mlp.up_proj.weight"] * 2}
    other = make_model(tmp_path / "other", shards=2, replace=changed)
    assert_equal(load(other, cache), load(other, None))
    assert len(files(cache)) == 3


def test_any_kv_cache_has_the_same_file(model: Path, cache: Path, counted: list[str]) -> None:
    plain = load_model_config(model)
    load(model, cache, config=plain)
    del counted[:]
    load(model, cache, config=with_kv_quant(plain, "int8"))
    assert (len(files(cache)), counted) == (1, [])


def test_each_rank_has_a_file_of_its_own(model: Path, cache: Path, counted: list[str]) -> None:
    """Their specs are equal, and so are the names of their tensors."""
    ranks = [shard_model(load_model_config(model), rank, 2) for rank in range(2)]
    expected = [load(model, None, config=config) for config in ranks]
    assert not torch.equal(expected[0].embedding, expected[1].embedding)
    for config in ranks:
        load(model, cache, config=config)
    assert len(files(cache)) == 2
    del counted[:]
    for config, wanted in zip(ranks, expected, strict=True):
        assert_equal(load(model, cache, config=config), wanted)
    assert counted == []


def test_the_same_content_elsewhere_is_recognised(tmp_path: Path, model: Path, cache: Path) -> None:
    load(model, cache)
    before = files(cache)
    copy = make_model(tmp_path / "copy", shards=2)
    os.utime(copy / "model-00001-of-00002.safetensors", (1, 1))
    assert_equal(load(copy, cache), load(model, None))
    assert files(cache) == before


def test_content_that_changes_in_place_is_noticed(model: Path, cache: Path) -> None:
    load(model, cache)
    part = model / "model-00002-of-00002.safetensors"
    data = bytearray(part.read_bytes())
    data[-1] ^= 0x80
    part.write_bytes(data)
    assert_equal(load(model, cache), load(model, None))
    assert len(files(cache)) == 2


@pytest.mark.parametrize("damage", ["empty", "truncated", "directory", "foreign", "everyone's", "points beyond"])
def test_a_file_that_is_not_whole_or_not_ours_is_written_anew(
    model: Path, cache: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    load(model, cache)
    (packed,) = files(cache)
    whole = packed.read_bytes()
    content = {
        "empty": b"",
        "truncated": whole[:-4096],
        "directory": whole[:-60] + b"x" + whole[-59:],
        "foreign": os.urandom(len(whole)),
        "everyone's": whole,
        "points beyond": whole[4096:],
    }[damage]
    packed.write_bytes(content)
    if damage == "everyone's":
        packed.chmod(0o666)
    expected = load(model, None)
    assert_equal(load(model, cache), expected)
    assert "they are written anew" in caplog.text
    assert packed.read_bytes() == whole
    assert_equal(load(model, cache), expected)


def test_a_file_without_a_tensor_that_the_model_needs_is_not_used(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    finish = packed_file.PackedWriter.finish

    def forget(self: packed_file.PackedWriter, directory: packed_file.Directory) -> None:
        finish(self, packed_file.Directory(directory.linears[1:], (), ()))

    monkeypatch.setattr(packed_file.PackedWriter, "finish", forget)
    load(model, cache)
    assert_equal(load(model, cache), load(model, None))
    assert "StalePackedFileError" in caplog.text
    assert files(cache) == [], "the next start writes it anew"


@pytest.fixture
def of_panels(tmp_path: Path) -> Path:
    """A model whose matrices have a multiple of 32 rows, as real ones have."""
    random = numpy.random.default_rng(3)
    hidden, inner, kv = 128, 160, 64
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (32, hidden), "model.norm.weight": (hidden,)}
    for layer in range(2):
        for name, shape in {
            "self_attn.q_proj.weight": (hidden, hidden), "self_attn.q_proj.bias": (hidden,),
            "self_attn.k_proj.weight": (kv, hidden), "self_attn.k_proj.bias": (kv,),
            "self_attn.v_proj.weight": (kv, hidden), "self_attn.v_proj.bias": (kv,),
            "self_attn.o_proj.weight": (hidden, hidden), "mlp.gate_proj.weight": (inner, hidden),
            "mlp.up_proj.weight": (inner, hidden), "mlp.down_proj.weight": (hidden, inner),
            "input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,),
        }.items():  # fmt: skip
            shapes[f"model.layers.{layer}.{name}"] = shape
    weights = {name: random.standard_normal(shape, dtype=numpy.float32) for name, shape in shapes.items()}
    return make_model(tmp_path / "panels", replace=weights, hidden_size=hidden, intermediate_size=inner)


@pytest.mark.parametrize("options", [{}, {"quant": "int8"}, {"quant": "int4"}], ids=["bf16", "int8", "int4"])
def test_matrices_of_whole_panels_are_packed_without_a_copy(
    of_panels: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object]
) -> None:
    expected = load(of_panels, None, **options)
    stacked = SafetensorsWeights.stacked

    def small_only(self: SafetensorsWeights, names: list[str]) -> torch.Tensor:
        assert len(names) == 1 or names[0].endswith("bias")
        return stacked(self, names)

    monkeypatch.setattr(SafetensorsWeights, "stacked", small_only)
    assert_equal(load(of_panels, cache, **options), expected)
    assert len(files(cache)) == 1
    assert_equal(load(of_panels, cache, **options), expected)


def test_a_model_that_needs_a_stacked_weight_itself_is_loaded_without_a_file(
    of_panels: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stacked = WritingSource.stacked
    kept: list[torch.Tensor] = []
    monkeypatch.setattr(WritingSource, "stacked", lambda self, names: kept.append(stacked(self, names)) or kept[-1])
    assert_equal(load(of_panels, cache), load(of_panels, None))
    assert "StalePackedFileError" in caplog.text
    assert files(cache) == []


def test_several_at_once_write_one_file_and_share_it(model: Path, cache: Path, counted: list[str]) -> None:
    loaded: list[Decoder] = []
    threads = [threading.Thread(target=lambda: loaded.append(load(model, cache))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(files(cache)) == 1
    linear_names = [name for name in counted if "up_proj" in name]
    assert len(linear_names) == 2, "each of the two layers was read once"
    for each in loaded:
        assert_equal(each, loaded[0])


def test_what_a_killed_process_left_is_written_over(model: Path, cache: Path) -> None:
    load(model, cache)
    (packed,) = files(cache)
    whole = packed.read_bytes()
    stamp = folder.identity.stamp(sorted(model.glob("*.safetensors")))
    settings = (repr(load_model_config(model)), "none", "False")
    packing = folder.identity.packing(sorted(model.glob("*.safetensors")), *settings)
    packed.rename(cache / f"{folder.identity.digest(packing, stamp)}.partial")
    load(model, cache)
    assert files(cache) == [packed]
    assert packed.read_bytes() == whole


def test_a_process_that_writes_for_too_long_is_not_waited_for(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "WAIT_S", 0.0)
    place = folder.Place(
        cache, LIMIT, tuple(sorted(model.glob("*.safetensors"))), (repr(load_model_config(model)), "none", "False")
    )
    writing = place.open_writer(1 << 20)
    assert writing is not None
    assert_equal(load(model, cache), load(model, None))
    assert not list(cache.glob("*.packed"))
    writing.discard()
    load(model, cache)
    assert len(list(cache.glob("*.packed"))) == 1


def test_a_disk_that_fills_up_leaves_a_model_and_no_file(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write, calls = packed_file.write_all, [0]

    def full(*args: object) -> None:
        calls[0] += 1
        if calls[0] > 4:
            raise OSError(28, "No space left on device")
        write(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(packed_file, "write_all", full)
    found = load(model, cache)
    assert_equal(found, load(model, None))
    assert files(cache) == []
    assert caplog.text.count("packed weights are not kept: [Errno 28]") == 1
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    assert not [line for line in maps if str(cache) in line], "else the space of the deleted file stays taken"


def test_on_a_small_disk_what_was_not_used_for_longest_makes_room(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [
        make_model(tmp_path / str(number), replace={"model.norm.weight": numpy.full(16, number, numpy.float32)})
        for number in range(4)
    ]
    load(models[0], cache)
    (oldest,) = files(cache)
    with oldest.open("r+b") as stream:
        stream.truncate(4 * loading._MARGIN)
    load(models[1], cache)
    (newer,) = set(files(cache)) - {oldest}
    os.utime(oldest, (1, 1))
    os.utime(newer, (2, 2))

    def size(needed: int) -> None:
        """A disk that has this much free without the files of the folder's two models."""
        usage = folder.shutil.disk_usage(tmp_path)
        used = lambda: sum(file.stat().st_size for file in files(cache))  # noqa: E731
        monkeypatch.setattr(folder.shutil, "disk_usage", lambda _: usage._replace(free=needed - used()))

    size(5 * loading._MARGIN)
    load(models[2], cache)
    assert oldest not in files(cache)
    assert newer in files(cache)
    assert len(files(cache)) == 2
    monkeypatch.undo()
    monkeypatch.setattr(loading, "LEAST_BYTES", 0)
    size(loading._MARGIN)
    load(models[3], cache)
    assert len(files(cache)) == 2, "where nothing that goes would be enough, nothing goes"


def test_files_in_use_are_no_room(model: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is mapped cannot go, so nothing else goes for a room that would need it."""
    load(model, cache)
    (unused,) = files(cache)
    used = cache / "used.packed"
    used.write_bytes(bytes(1000))
    place = folder.Place(cache, 1 << 40, (unused,), ())
    usage = folder.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(folder.shutil, "disk_usage", lambda _: usage._replace(free=0))
    with used.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_SH)
        assert not place._make_room(unused.stat().st_size + 1000)
    assert set(files(cache)) == {unused, used}


def test_a_folder_that_cannot_be_written_changes_nothing(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    assert_equal(load(model, tmp_path / "file" / "packed"), load(model, None))


def test_a_folder_that_can_only_be_read_is_used(
    model: Path, cache: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(model, cache)
    for note in (cache / "checksums").iterdir():
        note.unlink()
    del counted[:]

    def read_only(path: Path, *arguments: object, **options: object) -> None:
        raise OSError(30, "Read-only file system", str(path))

    for name in ("write_text", "mkdir", "replace"):
        monkeypatch.setattr(Path, name, read_only)
    monkeypatch.setattr(folder.os, "utime", read_only)
    load(model, cache)
    assert counted == []


def test_the_folder_stays_within_its_limit(tmp_path: Path, cache: Path) -> None:
    models = [
        make_model(tmp_path / str(number), replace={"model.norm.weight": numpy.full(16, number, numpy.float32)})
        for number in range(3)
    ]
    load(models[0], cache)
    (first,) = files(cache)
    load(models[1], cache)
    (second,) = set(files(cache)) - {first}
    os.utime(first, (1, 1))
    os.utime(second, (2, 2))
    load(models[0], cache)  # used again, and so the last to go
    limit = int(loading._MARGIN * 1.5)
    first.write_bytes(first.read_bytes())
    with second.open("r+b") as stream:
        stream.truncate(limit)
    os.utime(second, (2, 2))
    load(models[2], cache, limit=limit)
    assert first in files(cache)
    assert second not in files(cache)
    assert len(files(cache)) == 2
    before = files(cache)
    load(models[1], cache, limit=loading._MARGIN)
    assert files(cache) == before, "what would fill the limit alone is not written"


def test_the_default_folder_is_no_temporary_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HF_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/home/me/.cache")
    assert packed_cache(None, 5) == (Path("/home/me/.cache/bladellm/packed"), 5)
    assert packed_cache(None, 0) is None
    assert packed_cache(str(tmp_path), 5) == (tmp_path, 5)
    monkeypatch.setattr(folder.tempfile, "gettempdir", lambda: "/tmp")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/tmp")
    assert packed_cache(None, 5) is None
    monkeypatch.setenv("HF_HOME", "/models")
    assert packed_cache(None, 5) == (Path("/models/bladellm/packed"), 5)


def test_a_bin_checkpoint_is_written_once_and_not_what_is_packed_of_it_again(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, counted: list[str]
) -> None:
    monkeypatch.setattr(sources, "SMALL_BYTES", 0)
    for file in model.glob("model*"):
        file.unlink()
    torch.save({name: torch.tensor(value).bfloat16() for name, value in tensors().items()}, model / "pytorch_model.bin")
    expected = load(model, None)
    load(model, cache)
    (packed,) = files(cache)
    names = {stored.names[0] for stored in packed_file.PackedFile(packed).directory.tensors}
    assert names == {name for name in tensors() if "norm" in name or "embed" in name}
    del counted[:]
    assert_equal(load(model, cache), expected)
    assert counted == []


def test_a_file_that_a_process_has_mapped_is_not_deleted(tmp_path: Path, cache: Path) -> None:
    models = [
        make_model(tmp_path / str(number), replace={"model.norm.weight": numpy.full(16, number, numpy.float32)})
        for number in range(3)
    ]
    limit = int(loading._MARGIN * 1.5)
    load(models[0], cache)
    (first,) = files(cache)
    with first.open("r+b") as stream:  # as large as the limit, and whole
        tail = stream.read()[-packed_file._TAIL :]
        stream.truncate(limit)
        directory = msgspec.msgpack.encode(packed_file.Directory((), (), ()))
        stream.seek(limit)
        stream.write(directory + hashlib.sha256(directory).digest() + limit.to_bytes(8, "little") + tail[-8:])
    used = packed_file.PackedFile(first)
    os.utime(first, (1, 1))
    load(models[1], cache, limit=limit)
    assert first in files(cache)
    del used
    os.utime(first, (1, 1))
    load(models[2], cache, limit=limit)
    assert first not in files(cache)


def test_the_writer_of_a_file_keeps_it_too(model: Path, cache: Path) -> None:
    used = load(model, cache)
    (packed,) = files(cache)
    folder._remove_unused(packed)
    assert files(cache) == [packed]
    del used
    gc.collect()
    folder._remove_unused(packed)
    assert files(cache) == []


def test_the_folder_is_the_users_alone(model: Path, cache: Path) -> None:
    load(model, cache)
    assert (cache.stat().st_mode & 0o777, (cache / "checksums").stat().st_mode & 0o777) == (0o700, 0o700)


def test_a_file_that_may_not_be_read_costs_no_checksum(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(model, cache)
    place = folder.Place(
        cache, LIMIT, tuple(sorted(model.glob("*.safetensors"))), (repr(load_model_config(model)), "none", "False")
    )
    assert place.find() is not None
    read: list[object] = []
    monkeypatch.setattr(folder.identity, "read_content", lambda *of: read.append(of))
    monkeypatch.setattr(folder.os, "access", lambda *_: False)
    assert place.find() is None
    assert read == []


def test_what_cannot_be_deleted_is_not_said_to_be_written_anew(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    load(model, cache)
    (packed,) = files(cache)
    packed.write_bytes(b"")

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    place = folder.Place(
        cache, LIMIT, tuple(sorted(model.glob("*.safetensors"))), (repr(load_model_config(model)), "none", "False")
    )
    monkeypatch.setattr(Path, "unlink", refuse)
    assert place.find() is None
    assert "they cannot be deleted: Operation not permitted" in caplog.text
    assert "anew" not in caplog.text


def test_without_a_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert packed_cache(None, 5) is None


def test_weights_that_are_transposed_are_the_same_with_and_without_a_folder(tmp_path: Path, cache: Path) -> None:
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "n_ctx": 64, "n_inner": None}
    model = make_model(tmp_path / "model", architectures=["GPT2LMHeadModel"], activation_function="gelu_new", **shape)
    random = numpy.random.default_rng(5)
    save_file(
        {
            name: random.standard_normal(shape, dtype=numpy.float32)
            for name, shape in expected_tensors(load_model_config(model)).items()
        },
        model / "model.safetensors",
    )
    expected = load(model, None)
    assert_equal(load(model, cache), expected)
    assert_equal(load(model, cache), expected)
