"""Responses are kept in order, off the event loop, and a disk that fails or hangs costs no answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from blade_llm.api.common import response_writer
from blade_llm.api.common.errors import ApiError
from blade_llm.api.common.response_store import ResponseStore, ResponseStoreOptions
from blade_llm.api.common.response_writer import ResponseWriter


def _name(number: int) -> str:
    return f"resp_{number:032x}"


class Disk(ResponseStore):
    """One that works while it is ``open``, and notes what it is told to do and where."""

    def __init__(self, folder: Path, size: int = 1000) -> None:
        super().__init__(ResponseStoreOptions(folder=str(folder / "store"), max_bytes=size))
        self.open = threading.Event()
        self.open.set()
        self.done: list[str] = []
        self.threads: set[int] = set()
        self._changed = threading.Condition()

    def put(self, name: str, value: bytes) -> bool:
        self._work(f"put {name[-1]}")
        return super().put(name, value)

    def delete(self, name: str) -> None:
        self._work(f"delete {name[-1]}")
        super().delete(name)

    def wait_for(self, count: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: len(self.done) >= count, 60)

    def _work(self, what: str) -> None:
        self.open.wait(60)
        with self._changed:
            self.done.append(what)
            self._changed.notify_all()
        self.threads.add(threading.get_ident())


class Losses:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def losses() -> Losses:
    return Losses()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path)
    yield disk
    disk.open.set()


def play(disk: Disk, losses: Losses, body: Callable[[ResponseWriter], object]) -> None:
    async def main() -> None:
        writer = ResponseWriter(disk, losses)
        try:
            await body(writer)  # type: ignore[misc]
        finally:
            disk.open.set()
            writer.close()

    asyncio.run(main())


def test_it_is_kept_when_it_returns(disk: Disk, losses: Losses) -> None:
    async def body(writer: ResponseWriter) -> None:
        for number in range(5):
            await writer.put(_name(number), lambda: b"x" * 10)
            assert disk.get(_name(number)) == b"x" * 10
        await writer.delete(_name(3))
        assert disk.get(_name(3)) is None

    play(disk, losses, body)
    assert losses.count == 0
    assert len(disk.threads) == 1
    assert threading.get_ident() not in disk.threads


def test_in_order_while_the_loop_goes_on(disk: Disk, losses: Losses) -> None:
    encoded: list[int] = []

    def encode() -> bytes:
        encoded.append(threading.get_ident())
        return b"x"

    async def body(writer: ResponseWriter) -> None:
        disk.open.clear()
        tasks = [asyncio.ensure_future(writer.put(_name(1), encode))]
        tasks += [asyncio.ensure_future(writer.delete(_name(1))), asyncio.ensure_future(writer.put(_name(2), encode))]
        for _ in range(20):  # the loop is free
            await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
        disk.open.set()
        await asyncio.gather(*tasks)

    play(disk, losses, body)
    assert disk.done == ["put 1", "delete 1", "put 2"]
    assert threading.get_ident() not in encoded
    assert (disk.get(_name(1)), disk.get(_name(2))) == (None, b"x")


def test_a_disk_that_fails(tmp_path: Path, losses: Losses, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "store").write_text("no folder")
    disk = Disk(tmp_path)

    async def body(writer: ResponseWriter) -> None:
        await writer.put(_name(1), lambda: b"x")

    play(disk, losses, body)
    assert losses.count == 1
    assert f"the response {_name(1)} is not kept: " in caplog.text


def test_what_is_too_large(disk: Disk, losses: Losses, caplog: pytest.LogCaptureFixture) -> None:
    async def body(writer: ResponseWriter) -> None:
        await writer.put(_name(1), lambda: b"x" * 1001)

    play(disk, losses, body)
    assert losses.count == 1
    assert "--response_store_bytes" in caplog.text


def test_a_disk_that_hangs(
    disk: Disk, losses: Losses, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for it goes on without; more than a bounded number do not even wait."""
    monkeypatch.setattr(response_writer, "LONGEST_WAIT_S", 0.05)
    monkeypatch.setattr(response_writer, "MOST_PENDING", 3)

    async def body(writer: ResponseWriter) -> None:
        disk.open.clear()
        await asyncio.gather(*(writer.put(_name(number), lambda: b"x") for number in range(5)))
        assert losses.count == 5
        assert caplog.text.count("3 others wait for the disk") == 2
        assert caplog.text.count("within 0.05 s") == 3
        with pytest.raises(ApiError, match="is not deleted: 3 others wait for the disk") as caught:
            await writer.delete(_name(0))
        assert (caught.value.status, caught.value.detail.code) == (503, "busy")
        disk.open.set()
        monkeypatch.setattr(response_writer, "LONGEST_WAIT_S", 60.0)
        await asyncio.to_thread(disk.wait_for, 3)
        await writer.put(_name(9), lambda: b"y")
        assert disk.get(_name(9)) == b"y"
        disk.open.clear()
        monkeypatch.setattr(response_writer, "LONGEST_WAIT_S", 0.05)
        await writer.delete(_name(9))
        assert f"the response {_name(9)} is not deleted yet" in caplog.text

    play(disk, losses, body)
    assert losses.count == 5
