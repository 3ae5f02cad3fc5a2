"""Collectives in shared memory: the sums that they are defined as, bit by bit, however many ranks share a core."""

from __future__ import annotations

import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from engine_support import rank_work
from engine_support.native_isa import ISAS, limited_to
from engine_support.rank_processes import results_of, running

from blade_llm.kernels.collectives import CollectiveError
from blade_llm.parallel.group import RankLostError
from blade_llm.parallel.shared_memory import SharedMemoryGroup, abort_segment, create_segment, is_available

pytestmark = pytest.mark.skipif(not is_available(), reason="no native operators here")

COUNTS = (1, 2, 3, 15, 16, 17, 63, 896, 4097, 32_768, 32_769, 100_003, 262_144, 524_289)
"""Both sides of a vector, of what is sent at once, and of one, two and more steps."""


def address(size: int) -> str:
    return f"shm:{create_segment(size)}"


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_sums_are_in_rank_order_and_rounded_once(size: int) -> None:
    found = results_of(address(size), size, rank_work.sums, COUNTS, rank_work.DTYPES)
    expected = [rank_work.bits(rank_work.total(size, count, dtype)) for dtype in rank_work.DTYPES for count in COUNTS]
    for each in found:
        assert each == expected


def test_a_sum_of_many_steps() -> None:
    counts = (2048 * 896 + 5,)
    found = results_of(address(3), 3, rank_work.sums, counts, (torch.bfloat16, torch.float32))
    expected = [rank_work.bits(rank_work.total(3, counts[0], dtype)) for dtype in (torch.bfloat16, torch.float32)]
    assert found == [expected] * 3


def test_threads_of_a_rank_divide_the_work() -> None:
    counts = (32_000, 524_289, 2_000_003)
    found = results_of(address(2), 2, rank_work.sums_by_threads, counts, 3)
    expected = [rank_work.bits(rank_work.total(2, count, torch.bfloat16)) for count in counts]
    assert found == [expected] * 2


def test_numbers_at_the_ends_of_their_types() -> None:
    """Infinity, the largest and the smallest; fp16 overflows where bf16 does not."""
    infinity = float("inf")
    values = [[infinity, 60_000.0, 2.0**-24, 2.0**-126, -0.0], [1.0, 10_000.0, 2.0**-24, 2.0**-126, -0.0]]
    first, second = results_of(address(2), 2, rank_work.special_sums, values)
    assert first == second
    assert first[0] == [infinity, 70_000.0, 2.0**-23, 2.0**-125, 0.0]
    assert first[1] == [infinity, float(torch.tensor(59_904.0 + 9_984.0).bfloat16()), 2.0**-23, 2.0**-125, 0.0]
    assert first[2] == [infinity, infinity, 2.0**-23, 0.0, 0.0]


@pytest.mark.parametrize("isa", ISAS)
def test_each_instruction_set_adds_all_of_fp16(isa: str) -> None:
    """All finite numbers, of one rank alone: what is read and rounded is what was there."""
    every = torch.arange(2**16).to(torch.int32).to(torch.int16).view(torch.float16)
    finite = every[every.isfinite()]
    path = create_segment(2)
    groups = [SharedMemoryGroup(path, rank, 2) for rank in range(2)]
    with limited_to(isa):
        halves, zeros = _both(groups, finite.clone(), torch.zeros_like(finite))
        third = finite[torch.randperm(len(finite), generator=torch.Generator().manual_seed(1))]
        sums, _ = _both(groups, finite.clone(), third.clone())
    assert torch.equal(halves, finite)
    assert torch.equal(zeros, finite)
    assert torch.equal(sums, (finite.float() + third.float()).half())
    for group in groups:
        group.close()


def _both(groups: list[SharedMemoryGroup], *tensors: torch.Tensor) -> list[torch.Tensor]:
    """Ranks as threads."""
    with ThreadPoolExecutor(len(groups)) as pool:
        return list(pool.map(lambda pair: pair[0].all_reduce(pair[1]), zip(groups, tensors, strict=True)))


@pytest.mark.parametrize(("size", "rounds"), [(2, 5000), (4, 2000), (8, 500)])
def test_thousands_in_a_row(size: int, rounds: int) -> None:
    """Also with more ranks than cores."""
    assert results_of(address(size), size, rank_work.many_small_sums, rounds) == [0] * size


def test_who_comes_late_changes_nothing() -> None:
    assert results_of(address(3), 3, rank_work.many_small_sums, 300, 0.005) == [0] * 3


@pytest.mark.soak
def test_two_ranks_on_one_core_are_not_slow() -> None:
    seconds = results_of(address(2), 2, _seconds_on_one_core, 2000)
    assert max(seconds) < 2.0, "a millisecond each: a time slice, which spinning would take"


def _seconds_on_one_core(group: SharedMemoryGroup, rounds: int) -> float:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    x = torch.ones(896, dtype=torch.bfloat16)
    group.least(0)
    start = time.perf_counter()
    for _ in range(rounds):
        group.all_reduce(x)
    return time.perf_counter() - start


@pytest.mark.parametrize("rows", [1, 400_001])
def test_gathers_bytes_of_any_kind(rows: int) -> None:
    first, *others = results_of(address(3), 3, rank_work.gathered, rows)
    assert others == [first] * 2


@pytest.mark.parametrize(("size", "rows"), [(2, 1), (2, 400_001), (3, 2), (3, 400_001), (5, 12)])
def test_exchanges_shares_of_rows(size: int, rows: int) -> None:
    results_of(address(size), size, rank_work.exchanged, rows)


def test_the_least() -> None:
    assert results_of(address(3), 3, rank_work.leasts) == [[-(2**62), 5, 0, -2, 2**62]] * 3


def test_a_group_of_one() -> None:
    path = create_segment(1)
    group = SharedMemoryGroup(path, 0, 1)
    assert not path.exists()
    x = torch.randn(100_000)
    assert torch.equal(group.all_reduce(x.clone()), x)
    assert torch.equal(group.all_gather(x), x)
    assert torch.equal(group.all_to_all(x.view(10, -1)), x.view(10, -1))
    assert group.least(-3) == -3
    group.close()


@pytest.mark.parametrize(
    ("case", "theirs"),
    [
        ("operation", "all_gather of 200 bytes"),
        ("length", "all_reduce of 400000 bytes of bf16"),
        ("type", "all_reduce of 200 bytes of fp16"),
    ],
)
def test_ranks_out_of_step_are_told(case: str, theirs: str) -> None:
    found = results_of(address(3), 3, rank_work.out_of_step, case)
    usual = "all_reduce of 200 bytes of bf16"
    said = "CollectiveError: ranks are out of step: rank"
    assert found[:2] == [f"{said} 1 is at {theirs}, rank 0 at {usual}", f"{said} 0 is at {usual}, rank 1 at {theirs}"]
    assert found[2] in (
        f"{said} 1 is at {theirs}, rank 2 at {usual}",
        f"CollectiveError: ranks 0, 1 are out of step, as their own errors say, before {usual}",
    )


def test_others_of_a_killed_rank_are_told_at_once(tmp_path: Path) -> None:
    path = create_segment(3)
    segment = os.open(path, os.O_RDWR)
    with running(f"shm:{path}", 3, rank_work.waiting_for, 1, str(tmp_path / "started")) as ranks:
        while len(list(tmp_path.iterdir())) < 3:
            time.sleep(0.01)
        time.sleep(0.2)
        ranks.kill(1)
        abort_segment(segment, 1)
        for said in ranks.results([0, 2]):
            assert (
                said
                == "RankLostError: rank 1 is lost: the group was aborted before all_reduce of 2000000 bytes of fp32"
            )
        assert not path.exists()
    os.close(segment)


def test_a_thread_of_a_rank_may_abort() -> None:
    said = "RankLostError: rank 1 is lost: the group was aborted before least of 8 bytes"
    assert results_of(address(3), 3, rank_work.aborted_by_a_thread, 1) == [said, "lost", said]


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ((2,), "rank 2 is lost: it did not come within 1 s to least of 8 bytes"),
        ((1, 2), "ranks 1, 2 are lost: they did not come within 1 s to least of 8 bytes"),
    ],
)
def test_who_does_not_come_in_time_is_named_to_all(missing: tuple[int, ...], said: str) -> None:
    """To itself, too, should it come later."""
    found = results_of(address(4), 4, rank_work.late, missing, 2.5, timeout=1.0)
    assert found == [f"RankLostError: {said}"] * 4


def test_a_rank_that_leaves_is_named() -> None:
    found = results_of(address(3), 3, rank_work.leaving)
    left = "RankLostError: rank 0 is lost: it left the group before least of 8 bytes"
    assert found == ["CollectiveError: rank 0 has left the group", left, left]


def test_a_segment_is_private_and_gone_when_all_have_joined() -> None:
    path = create_segment(2)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first = SharedMemoryGroup(path, 0, 2)
    assert path.exists()
    second = SharedMemoryGroup(path, 1, 2)
    assert not path.exists()
    first.close()
    with pytest.raises(RankLostError, match="rank 0 is lost: it left the group"):
        second.least(1)
    second.close()


def test_what_is_no_segment_for_the_rank_is_refused(tmp_path: Path) -> None:
    path = create_segment(2, tmp_path)
    assert path.parent == tmp_path
    for rank, size in ((0, 3), (2, 2), (-1, 2), (0, 33)):
        with pytest.raises(CollectiveError, match=f"not a segment for rank {rank} of {size}: Invalid argument"):
            SharedMemoryGroup(path, rank, size)
    group = SharedMemoryGroup(path, 1, 2)
    with pytest.raises(CollectiveError, match="rank 1 has already joined"):
        SharedMemoryGroup(path, 1, 2)
    with pytest.raises(ValueError, match="there are ranks 0 to 1, not 2"):
        group.abort(2)
    with pytest.raises(OSError, match="Invalid argument"):
        abort_segment(path, 2)
    other = tmp_path / "other"
    other.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(CollectiveError, match="not a segment"):
        SharedMemoryGroup(other, 0, 2)
    with pytest.raises(OSError, match="Invalid argument"):
        abort_segment(other, 0)
    with pytest.raises(ValueError, match="1 to 32 ranks"):
        create_segment(33, tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted((path, other))
    group.close()


def test_tensors_that_are_not_served() -> None:
    group = SharedMemoryGroup(create_segment(1), 0, 1)
    for x in (torch.zeros(4, dtype=torch.float64), torch.zeros(4, 4).T):
        with pytest.raises(ValueError, match="expected contiguous"):
            group.all_reduce(x)
    with pytest.raises(ValueError, match="expected contiguous"):
        group.all_gather(torch.zeros(4, 4).T)
    with pytest.raises(ValueError, match="expected contiguous"):
        group.all_to_all(torch.zeros(4, 4).T)
    group.close()
