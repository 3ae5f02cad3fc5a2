"""The folder of packed weights: who writes in it and when, what it may hold, what is deleted, and what may not be."""

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
from engine_support.packed_starts import BF16, CPU, LIMIT, assert_equal, files, load
from hub_support.tiny_model import make_model

from blade_llm.models.config import load_model_config
from blade_llm.models.decoder import Decoder
from blade_llm.weights.packed_cache import file as packed_file
from blade_llm.weights.packed_cache import folder, loading
from blade_llm.weights.packed_cache.folder import packed_cache

pytestmark = pytest.mark.skipif(not loading.can_be_kept(CPU, BF16), reason="no native kernels on this CPU")


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
