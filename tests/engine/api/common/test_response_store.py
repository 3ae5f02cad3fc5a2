"""How many responses are kept, for how long, and by several processes together."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from blade_llm.api.common.response_store import ResponseStore, ResponseStoreOptions


def _name(number: int) -> str:
    return f"resp_{number:032x}"


def _options(folder: Path, size: int = 1000, seconds: float = 100.0) -> ResponseStoreOptions:
    return ResponseStoreOptions(folder=str(folder / "store"), max_bytes=size, seconds=seconds)


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("resp_*"))


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    store = ResponseStore(_options(tmp_path))
    for number in range(10):
        assert store.put(_name(number), b"x" * 100)
    assert store.get(_name(0)) == b"x" * 100
    store.put(_name(10), b"x" * 150)
    assert [number for number in range(11) if store.get(_name(number)) is None] == [1, 2]
    assert sum(path.stat().st_size for path in tmp_path.rglob("resp_*")) <= 1000


def test_the_bytes_of_what_is_written_again_count_once(tmp_path: Path) -> None:
    store = ResponseStore(_options(tmp_path))
    store.put(_name(1), b"x" * 500)
    for _ in range(5):
        store.put(_name(2), b"x" * 500)
    assert store.get(_name(1)) is not None


def test_what_is_too_large_is_not_kept(tmp_path: Path) -> None:
    store = ResponseStore(_options(tmp_path))
    store.put(_name(1), b"x")
    assert not store.put(_name(2), b"x" * 1001)
    assert (store.get(_name(1)), store.get(_name(2))) == (b"x", None)


def test_what_is_not_used_for_long_is_dropped(tmp_path: Path) -> None:
    store = ResponseStore(_options(tmp_path))
    for number in range(3):
        store.put(_name(number), b"x")
    old = time.time() - 101
    for path in tmp_path.rglob(_name(0)):
        os.utime(path, (old, old))
    assert store.get(_name(0)) is None
    assert _files(tmp_path) == [_name(1), _name(2)]


def test_those_of_nobody_are_dropped_when_the_next_one_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ResponseStore(_options(tmp_path))
    store.put(_name(1), b"x")
    later = time.time() + 101
    monkeypatch.setattr(time, "time", lambda: later)
    store.put(_name(2), b"x")
    assert _files(tmp_path) == [_name(2)]


def test_processes_find_and_delete_each_other_s(tmp_path: Path) -> None:
    first, second = (ResponseStore(_options(tmp_path), index=index, count=2) for index in range(2))
    first.put(_name(1), b"one")
    assert second.get(_name(1)) == b"one"
    second.delete(_name(1))
    assert first.get(_name(1)) is None
    first.put(_name(2), b"x" * 500)  # its half
    assert first.get(_name(2)) is not None
    assert not first.put(_name(3), b"x" * 501)


def test_a_use_by_another_process_counts(tmp_path: Path) -> None:
    first, second = (ResponseStore(_options(tmp_path, 600), index=index, count=2) for index in range(2))
    for number in range(3):
        first.put(_name(number), b"x" * 100)
    time.sleep(0.01)
    assert second.get(_name(0)) is not None
    first.put(_name(3), b"x" * 100)
    assert [number for number in range(4) if first.get(_name(number)) is None] == [1]


def test_no_other_user_may_read_them(tmp_path: Path) -> None:
    ResponseStore(_options(tmp_path)).put(_name(1), b"x")
    assert [oct(path.stat().st_mode & 0o777) for path in sorted((tmp_path / "store").rglob("*"))] == ["0o700", "0o600"]
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["resp_../../etc/passwd", "../x", "", "resp_" + "g" * 32, f"{_name(1)}/x"])
def test_no_name_leads_elsewhere(tmp_path: Path, name: str) -> None:
    store = ResponseStore(_options(tmp_path))
    assert not store.put(name, b"x")
    assert store.get(name) is None
    store.delete(name)
    assert _files(tmp_path) == []


def test_switched_off(tmp_path: Path) -> None:
    for store in (ResponseStore(), ResponseStore(_options(tmp_path, 0))):
        assert not store.enabled
        assert not store.put(_name(1), b"x")
        assert store.get(_name(1)) is None
