"""What is no folder is downloaded by every machine, once; what one cannot get is refused with its name."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import pytest
from engine_support.adapter_core import change, finish, info
from engine_support.disk_ranks import RankDisk, other_weights
from engine_support.fake_core import make_core
from engine_support.fake_runner import FakeRunner
from engine_support.rank_adapters import LocalRanks
from engine_support.server_process import wait_until

from blade_llm.config import EngineConfig
from blade_llm.engine.adapters import LoadedAdapter, files
from blade_llm.engine.adapters.entry import CheckedFiles
from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import LoadAdapter
from blade_llm.engine.ranks import adapter_reads
from blade_llm.engine.ranks.adapter_fetches import AdapterFetches, origin_of
from blade_llm.engine.ranks.adapter_messages import (
    AdapterFetchedMessage,
    FetchAdapterMessage,
    ForgetAdapterMessage,
    ReadAdapterMessage,
    decode_reply,
)
from blade_llm.engine.ranks.adapter_reads import Place, RankAdapters
from blade_llm.engine.ranks.adapters import AdapterRanks
from blade_llm.engine.ranks.messages import decode
from blade_llm.lora.errors import AdapterError
from blade_llm.models.errors import ModelFilesError
from blade_llm.parallel.layout import RankLayout

LAYOUT = RankLayout(4, 1, 2)
"""Ranks 0 and 1 on one machine, 2 and 3 on another."""


class TwoMachines(LocalRanks):
    """The ranks beside rank 0, with a cache of downloads for each machine."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.downloaded: list[str] = []
        """By the other machine."""
        self.fails = ""
        self.disks = RankDisk(), RankDisk(), RankDisk()
        self.loaded: list[dict[int, LoadedAdapter]] = [{}, {}, {}]
        monkeypatch.setattr(files, "find_folder", lambda path: Path(path) if path.startswith("/") else root / path)
        monkeypatch.setattr(adapter_reads, "find_folder", self._find)
        ranks = zip(self.disks, self.loaded, strict=True)
        super().__init__([RankAdapters(rank, *each, Place.of(LAYOUT, rank)) for rank, each in enumerate(ranks, 1)])

    def _find(self, path: str) -> Path:
        if self.fails:
            raise ModelFilesError(self.fails)
        folder = self.root / "other" / path
        if not folder.is_dir():
            folder.mkdir(parents=True)
            self.downloaded.append(path)
        return folder

    def name_of(self, rank: int) -> str:
        return f"machine 1 at 10.0.0.2: rank {rank}" if rank > 1 else f"rank {rank}"


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TwoMachines:
    return TwoMachines(tmp_path, monkeypatch)


@pytest.fixture
def core(ranks: TwoMachines, tmp_path: Path) -> EngineCore:
    core = make_core(FakeRunner(max_num_seqs=4), max_adapters=2)
    config = EngineConfig(model=str(tmp_path), served_names=("tiny",), enable_lora=True, max_loras=2)
    core.serve_adapters(config, RankDisk(), {}, AdapterRanks(ranks, LAYOUT.size, fetching=[2]))
    return core


def load(core: EngineCore, path: str, **options: bool) -> str:
    reply = change(core, LoadAdapter(call_id=1, name="sql", path=path, **options))
    return "" if reply.error is None else str(reply.error)


def test_who_downloads() -> None:
    assert [Place.of(RankLayout(3, 2, 3), rank) for rank in range(6)] == [
        Place(),
        Place(),
        Place(elsewhere=True, fetches=True),
        Place(elsewhere=True),
        Place(elsewhere=True, fetches=True),
        Place(elsewhere=True),
    ]


def test_each_machine_downloads_once(core: EngineCore, ranks: TwoMachines) -> None:
    assert load(core, "acme/sql") == ""
    assert ranks.downloaded == ["acme/sql"]
    assert [disk.reads for disk in ranks.disks] == [["sql"]] * 3
    assert [len(loaded) for loaded in ranks.loaded] == [1, 1, 1]


def test_what_another_machine_cannot_download_is_read_by_nobody(core: EngineCore, ranks: TwoMachines) -> None:
    ranks.fails = "model 'acme/sql' is not on the hub"
    assert load(core, "acme/sql") == "machine 1 at 10.0.0.2: rank 2: model 'acme/sql' is not on the hub"
    assert [disk.reads for disk in ranks.disks] == [[]] * 3
    ranks.fails = ""
    assert load(core, "acme/sql") == ""


def test_an_id_that_has_changed_meanwhile(core: EngineCore, ranks: TwoMachines) -> None:
    ranks.disks[2].instead["sql"] = other_weights
    says = load(core, "acme/sql")
    assert says.startswith("machine 1 at 10.0.0.2: rank 3 has another version of acme/sql than rank 0: give an id")


def test_one_that_is_registered_is_on_all_machines(core: EngineCore, ranks: TwoMachines) -> None:
    assert load(core, "acme/sql", register_only=True) == ""
    assert info(core, "sql").state == "registered"
    assert ranks.downloaded == ["acme/sql"]
    assert [disk.reads for disk in ranks.disks] == [[]] * 3


def test_a_folder_has_to_be_on_the_other_machine(core: EngineCore, ranks: TwoMachines, tmp_path: Path) -> None:
    says = load(core, str(tmp_path / "missing"))
    assert says.startswith(f"machine 1 at 10.0.0.2: rank 2: adapter folder {tmp_path / 'missing'} does not exist there")
    (tmp_path / "there").mkdir()
    assert load(core, str(tmp_path / "there")) == ""
    assert ranks.downloaded == []


def test_a_download_holds_up_no_other_adapter(
    core: EngineCore, ranks: TwoMachines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RankDisk()
    disk.open.clear()

    def slow(path: str) -> Path:
        assert disk.open.wait(30)
        return tmp_path

    monkeypatch.setattr(adapter_reads, "find_folder", slow)
    assert load(core, "acme/sql", wait=False) == ""
    (tmp_path / "there").mkdir()
    reply = change(core, LoadAdapter(call_id=2, name="other", path=str(tmp_path / "there")))
    assert reply.error is None
    assert info(core, "sql").state == "loading"
    disk.open.set()
    finish(core)
    wait_until(lambda: not core.has_work)


class Fetches:
    """On three machines, two of which are asked."""

    def __init__(self, ranks: tuple[int, ...] = (2, 4)) -> None:
        self.sent: list[bytes] = []
        self.now = 0.0
        self.own: Future[CheckedFiles] = Future()
        self.fetches = AdapterFetches(
            self.sent.append, ranks, lambda rank: f"machine of {rank}", seconds=10.0, clock=lambda: self.now
        )


def test_others_are_told_once_it_is_known_to_be_no_folder() -> None:
    three = Fetches()
    result = three.fetches.fetch("acme/sql", three.own)
    three.fetches.settle()
    assert three.sent == []
    three.own.set_result(CheckedFiles(Path("/cache/snapshots/1")))
    three.fetches.settle()
    three.fetches.settle()
    assert [decode(each) for each in three.sent] == [FetchAdapterMessage(1, "acme/sql")]
    three.fetches.replied(AdapterFetchedMessage(2, 1))
    three.fetches.settle()
    assert not result.done()
    three.fetches.replied(AdapterFetchedMessage(4, 1))
    three.fetches.settle()
    assert result.result() == three.own.result()


def test_a_relative_folder_is_no_id() -> None:
    three = Fetches()
    result = three.fetches.fetch("lora/sql/", three.own)
    three.own.set_result(CheckedFiles(Path("lora/sql")))
    three.fetches.settle()
    assert result.result().folder == Path("lora/sql")
    assert three.sent == []
    assert origin_of("lora/sql", Path("/cache/snapshots/1")) == "lora/sql"


def test_what_rank_0_cannot_find_is_its_own_message() -> None:
    three = Fetches()
    result = three.fetches.fetch("acme/sql", three.own)
    three.own.set_exception(ModelFilesError("there is none"))
    three.fetches.settle()
    with pytest.raises(ModelFilesError, match=r"^there is none$"):
        result.result()
    assert three.sent == []


def test_a_failure_is_that_of_the_first_and_later_words_are_ignored() -> None:
    three = Fetches()
    result = three.fetches.fetch("acme/sql", three.own)
    three.own.set_result(CheckedFiles(Path("/cache/snapshots/1")))
    three.fetches.settle()
    three.fetches.replied(AdapterFetchedMessage(4, 1, "the disk is full"))
    three.fetches.replied(AdapterFetchedMessage(2, 1, "so is mine"))
    with pytest.raises(AdapterError, match=r"^machine of 4: the disk is full$"):
        result.result()


def test_a_machine_that_does_not_get_it_is_named_after_a_while() -> None:
    three = Fetches()
    result = three.fetches.fetch("acme/sql", three.own)
    three.own.set_result(CheckedFiles(Path("/cache/snapshots/1")))
    three.now = 100.0
    three.fetches.settle()
    three.fetches.replied(AdapterFetchedMessage(2, 1))
    three.now = 110.0
    three.fetches.settle()
    assert not result.done()
    three.now = 110.1
    three.fetches.settle()
    with pytest.raises(AdapterError, match="machine of 4 has not downloaded the adapter 10 s after rank 0 did"):
        result.result()


def test_on_one_machine_nobody_is_asked() -> None:
    one = Fetches(ranks=())
    assert one.fetches.fetch("acme/sql", one.own) is one.own


def test_ranks_beside_rank_0_read_what_it_has_found(tmp_path: Path) -> None:
    """They download nothing, whatever they are told."""
    disk, loaded = RankDisk(), dict[int, LoadedAdapter]()
    rank = RankAdapters(1, disk, loaded)
    rank.handle(FetchAdapterMessage(1, "acme/sql"))
    rank.handle(ReadAdapterMessage(1, str(tmp_path / "found"), "acme/sql"))
    replies: list[bytes] = []

    def replied() -> bool:
        replies.extend(rank.take_replies())
        return bool(replies)

    wait_until(replied)
    (reply,) = map(decode_reply, replies)
    assert (reply.number, reply.error) == (1, "")
    assert disk.reads == ["found"]
    rank.handle(ForgetAdapterMessage(1))
    assert not loaded
