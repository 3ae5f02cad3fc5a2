"""The group over torch.distributed, and that shared memory computes what it does."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from engine_support import rank_work
from engine_support.rank_processes import results_of, running

from blade_llm.parallel import build, torch_group
from blade_llm.parallel.build import join_group
from blade_llm.parallel.group import RankLostError
from blade_llm.parallel.shared_memory import create_segment, is_available
from blade_llm.parallel.torch_group import TorchGroup

COUNTS = (1, 17, 896, 100_003)


@pytest.mark.parametrize("size", [2, 3])
def test_all_ranks_get_the_same_bits(size: int, tmp_path: Path) -> None:
    first, *others = results_of(f"file:{tmp_path / 'store'}", size, rank_work.sums, COUNTS, rank_work.DTYPES)
    assert others == [first] * (size - 1)
    if size == 2:  # a sum of two is the same in any order
        expected = [rank_work.total(2, count, dtype) for dtype in rank_work.DTYPES for count in COUNTS]
        assert first == [rank_work.bits(each) for each in expected]


def test_gathers_and_the_least(tmp_path: Path) -> None:
    for work, args in ((rank_work.gathered, (5,)), (rank_work.leasts, ()), (rank_work.many_small_sums, (200,))):
        found = results_of(f"file:{tmp_path / work.__name__}", 2, work, *args)
        if is_available():
            assert found == results_of(f"shm:{create_segment(2)}", 2, work, *args)
        assert found[0] == found[1]


@pytest.mark.parametrize(("size", "rows"), [(2, 5), (3, 2)])
def test_exchanges_shares_of_rows(size: int, rows: int, tmp_path: Path) -> None:
    found = results_of(f"file:{tmp_path / 'store'}", size, rank_work.exchanged, rows)
    if is_available():
        assert found == results_of(f"shm:{create_segment(size)}", size, rank_work.exchanged, rows)


def test_ranks_meet_at_a_port(unused_tcp_port: int) -> None:
    found = results_of(f"tcp://127.0.0.1:{unused_tcp_port}", 2, rank_work.leasts)
    assert found == [[-(2**62), 6, 0, -1, 2**62]] * 2


def test_others_of_a_killed_rank_are_told(tmp_path: Path) -> None:
    started = tmp_path / "started"
    started.mkdir()
    with running(f"file:{tmp_path / 'store'}", 2, rank_work.waiting_for, 1, str(started / "rank")) as ranks:
        while len(list(started.iterdir())) < 2:
            time.sleep(0.01)
        time.sleep(0.2)
        ranks.kill(1)
        # The group's own time-out is a minute.
        (said,) = ranks.results([0])
    assert said.startswith("RankLostError: another rank is lost: all_reduce failed: ")


def test_who_does_not_come_in_time_is_noticed(tmp_path: Path) -> None:
    found = results_of(f"file:{tmp_path / 'store'}", 2, rank_work.late, (1,), 3.0, timeout=1.0)
    assert found[0].startswith("RankLostError: another rank is lost: least failed: ")


def test_nobody_comes_at_all() -> None:
    with pytest.raises(RankLostError, match="join the group failed"):
        join_group("tcp://127.0.0.1:1", 1, 2, "cpu", 0.5)


def test_addresses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for address in ("shm", "pipe:/x", ""):
        with pytest.raises(ValueError, match="ranks meet at"):
            join_group(address, 0, 2, "cpu")
    with pytest.raises(ValueError, match="need CPUs"):
        join_group("shm:/dev/shm/none", 0, 2, "cuda")
    monkeypatch.setattr(build, "is_available", lambda: False)
    with pytest.raises(ValueError, match="native operators"):
        join_group("shm:/dev/shm/none", 0, 2, "cpu")


@pytest.mark.skipif(not is_available(), reason="no native operators here")
def test_shared_memory_is_for_native_calls() -> None:
    group = join_group(f"shm:{create_segment(1)}", 0, 1, "cpu")
    assert group.native
    assert torch.equal(group.all_reduce(torch.ones(2)), torch.ones(2))
    group.close()


@pytest.mark.parametrize(("device_type", "sent"), [("cpu", torch.float32), ("cuda", None)])
@pytest.mark.parametrize("dtype", rank_work.DTYPES, ids=str)
def test_between_gpus_sums_are_sent_in_their_own_type(
    device_type: str, sent: torch.dtype | None, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what the backend gets: no GPU is needed to see it."""
    found: list[torch.dtype] = []
    group = TorchGroup(f"file://{tmp_path / 'store'}", 0, 1, "cpu")
    try:
        monkeypatch.setattr(group, "_device", torch.device(device_type))
        monkeypatch.setattr(torch_group.dist, "all_reduce", lambda x, async_op: found.append(x.dtype) or x.mul_(3))
        monkeypatch.setattr(torch_group, "_ended", lambda work: True)
        x = torch.ones(4, dtype=dtype)
        assert group.all_reduce(x) is x
    finally:
        group.close()
    assert found == [sent or dtype]
    assert x.tolist() == [3.0] * 4


def test_who_waits_for_a_rank_that_hangs_can_be_freed(tmp_path: Path) -> None:
    """Rank 1 comes to no collective; the time-out is a minute."""
    work = results_of(f"file:{tmp_path / 'store'}", 2, rank_work.aborting, tmp_path / "done")
    assert work[0] == [
        f"RankLostError: another rank is lost: {name} failed: it was given up"
        for name in ("all_reduce", "all_gather", "all_to_all", "least")
    ]
