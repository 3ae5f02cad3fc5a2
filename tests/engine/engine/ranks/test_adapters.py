"""An adapter is used when all ranks have read the same; whatever goes wrong on one fails the load for all."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from engine_support.adapter_core import Weights, change, finish, load, request, tiers
from engine_support.disk_ranks import DiskRanks, RankDisk, other_weights
from engine_support.fake_core import make_core
from engine_support.fake_runner import FakeRunner
from engine_support.server_process import wait_until

from blade_llm.config import EngineConfig
from blade_llm.engine.adapters import LoadedAdapter
from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import UnloadAdapter
from blade_llm.engine.ranks.adapter_messages import ForgetAdapterMessage, ReadAdapterMessage
from blade_llm.engine.ranks.adapter_reads import RankAdapters
from blade_llm.engine.ranks.adapters import AdapterRanks
from blade_llm.engine.ranks.lost import RankFailedError, rank_failed
from blade_llm.engine.ranks.messages import decode
from blade_llm.lora.errors import AdapterError
from blade_llm.models.errors import ModelFilesError


class Engine:
    """A core whose rank 0 reads what the others read."""

    def __init__(self, root: Path, *, modules: tuple[str, ...] = (), host: int = 2, seconds: float = 60.0) -> None:
        for name in [*"abcd", "a-copy"]:
            (root / "adapters" / name).mkdir(parents=True, exist_ok=True)
        self.root, self.ranks, self.disk, self.now = root, DiskRanks(), RankDisk(), 0.0
        self.loaded: dict[int, LoadedAdapter] = {}
        self._config = EngineConfig(
            model=str(root),
            served_names=("tiny",),
            enable_lora=True,
            max_loras=2,
            max_cpu_loras=host,
            lora_allowed_roots=(str(root / "adapters"),),
            lora_modules=tuple((name, str(root / "adapters" / name)) for name in modules),
        )
        self.core: EngineCore = make_core(FakeRunner(max_num_seqs=4), max_adapters=2)
        self._messages = AdapterRanks(self.ranks, 3, seconds=seconds, clock=lambda: self.now)

    def serve(self) -> Engine:
        self.core.serve_adapters(self._config, self.disk, self.loaded, self._messages)
        return self

    def load(self, name: str, folder: str = "", **options: bool) -> str:
        return load(self.core, self.root, name, folder, **options)

    def check_same(self) -> None:
        """All ranks have what rank 0 has, and nothing else."""
        for loaded in self.ranks.loaded:
            assert {number: weights.digest for number, weights in loaded.items()} == {
                number: weights.digest for number, weights in self.loaded.items()
            }


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path).serve()


def fails() -> Weights:
    raise AdapterError("adapter /x cannot be read: Permission denied")


def breaks() -> Weights:
    raise RuntimeError("a disk error")


def test_every_rank_reads_and_forgets_what_rank_0_does(engine: Engine) -> None:
    assert engine.load("a") == ""
    assert engine.load("b") == ""
    engine.check_same()
    assert len(engine.loaded) == 2
    assert engine.load("c") == ""  # the least recently used one makes room
    engine.check_same()
    assert tiers(engine.core) == {"a": "disk", "b": "host", "c": "host"}
    assert change(engine.core, UnloadAdapter(call_id=1, name="b")).error is None
    engine.check_same()
    assert len(engine.loaded) == 1


def test_those_of_the_start_are_read_by_all(tmp_path: Path) -> None:
    engine = Engine(tmp_path, modules=("a", "b")).serve()
    engine.check_same()
    assert len(engine.loaded) == 2


@pytest.mark.parametrize(
    ("instead", "says"),
    [
        (fails, "rank 2: adapter /x cannot be read: Permission denied"),
        (breaks, "rank 2: RuntimeError('a disk error')"),
        (other_weights, "rank 2 has read other weights than rank 0: the folder was changed meanwhile"),
    ],
)
def test_a_failure_of_one_rank_is_that_of_all(
    tmp_path: Path, engine: Engine, instead: Callable[[], Weights], says: str
) -> None:
    engine.ranks.disks[1].instead["a"] = instead
    assert engine.load("a").startswith(says)
    assert engine.load("b") == ""
    engine.check_same()
    assert len(engine.loaded) == 1
    engine.ranks.disks[1].instead.clear()
    assert engine.load("a") == ""
    engine.check_same()
    at_start = Engine(tmp_path, modules=("a",))
    at_start.ranks.disks[1].instead["a"] = instead
    with pytest.raises(ModelFilesError, match=r"--lora_modules a=.*rank 2"):
        at_start.serve()


def test_what_rank_0_cannot_read_is_its_own_message(engine: Engine) -> None:
    engine.disk.instead["a"] = fails
    engine.ranks.disks[0].instead["a"] = fails
    assert engine.load("a") == "adapter /x cannot be read: Permission denied"
    engine.load("b")
    engine.check_same()


def test_a_request_waits_until_all_ranks_have_its_adapter(engine: Engine) -> None:
    slow = engine.ranks.disks[0].open
    slow.clear()
    engine.core.add(request("1", str(engine.root / "adapters" / "a")))
    for _ in range(5):
        assert engine.core.step() == []
    assert engine.disk.reads == ["a"]
    assert not engine.loaded
    engine.core.add(request("2", ""))  # steps go on meanwhile
    ended: dict[str, Any] = {}
    while "2" not in ended:
        ended |= {each.request_id: each.finish_reason for each in engine.core.step() if each.finish_reason}
    assert set(ended) == {"2"}
    slow.set()
    assert finish(engine.core) == {"1": "length"}
    engine.check_same()


def test_a_rank_that_does_not_read_is_named_after_a_while(tmp_path: Path) -> None:
    engine = Engine(tmp_path, seconds=10.0).serve()
    slow = engine.ranks.disks[1].open
    slow.clear()
    engine.core.add(request("1", str(engine.root / "adapters" / "a")))
    wait_until(lambda: not engine.core.step() and engine.disk.reads == ["a"])
    engine.core.step()
    engine.now = 9.0
    assert engine.core.step() == []
    engine.now = 11.0
    ((_, end),) = finish(engine.core).items()
    assert "rank 2 has not read the adapter 10 s after rank 0 did" in end
    slow.set()
    assert engine.load("b") == ""
    engine.check_same()


def test_a_lost_rank_ends_the_wait(engine: Engine) -> None:
    engine.ranks.disks[1].open.clear()
    engine.core.add(request("1", str(engine.root / "adapters" / "a")))
    engine.core.step()
    engine.ranks.lost = rank_failed(2, "was ended by SIGKILL")
    with pytest.raises(RankFailedError, match="rank 2 was ended by SIGKILL"):
        finish(engine.core)
    engine.ranks.disks[1].open.set()


def test_what_nobody_wants_any_more_is_forgotten(engine: Engine) -> None:
    """Unloaded while it is read, and read again from another place with the same content."""
    assert engine.load("a") == ""
    engine.disk.open.clear()
    assert engine.load("b", wait=False) == ""
    engine.core.step()
    assert change(engine.core, UnloadAdapter(call_id=1, name="b")).error is None
    assert engine.load("a", "a-copy", replace=True, wait=False) == ""
    engine.disk.open.set()
    finish(engine.core)
    wait_until(lambda: [each.reads for each in engine.ranks.disks] == [["a", "b", "a-copy"]] * 2)
    assert engine.load("c") == ""
    engine.check_same()
    assert len(engine.loaded) == 2


def test_forgetting_before_it_is_read() -> None:
    """What is read all the same is not kept, and says nothing."""
    disk, loaded = RankDisk(), dict[int, LoadedAdapter]()
    disk.open.clear()
    rank = RankAdapters(1, disk, loaded)
    for number in (1, 2):
        rank.handle(ReadAdapterMessage(number, "/adapters/a"))
        rank.handle(ForgetAdapterMessage(number))
    rank.handle(ReadAdapterMessage(3, "/adapters/b"))
    disk.open.set()
    replies: list[bytes] = []
    wait_until(lambda: bool(replies.extend(rank.take_replies()) or replies))
    assert len(replies) == 1
    assert set(loaded) == {3}
    assert not rank.take_replies()


def test_folders_are_sent_in_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A rank may have another working directory."""
    sent: list[bytes] = []
    ranks = DiskRanks()
    monkeypatch.setattr(ranks, "send", sent.append)
    monkeypatch.chdir(tmp_path)
    AdapterRanks(ranks, 3).read(1, "a", Path("a"), Future())
    assert [decode(each) for each in sent] == [ReadAdapterMessage(1, str(tmp_path / "a"))]
