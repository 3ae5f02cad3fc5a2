"""All-reduces of our own: which sums they are for, and what happens where they cannot be. The kernels themselves need
several GPUs (``test_gpu_processes.py``)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from engine_support import rank_symmetric_work, rank_work
from engine_support.rank_processes import results_of
from torch.distributed import ProcessGroup, _symmetric_memory

from blade_llm.engine.ranks import build
from blade_llm.parallel import ranks as joining
from blade_llm.parallel.build import join_group
from blade_llm.parallel.layout import RankLayout
from blade_llm.parallel.symmetric_memory import SymmetricMemory, Ways, open_symmetric_memory

KIB, MIB = 1 << 10, 1 << 20
BF16 = torch.bfloat16
GROUP = SimpleNamespace(group_name="ranks")
GPU = torch.device("cuda", 1)


@pytest.mark.parametrize(
    ("ranks", "capability", "multicast", "sizes"),
    [
        (2, (9, 0), True, [(16, "one_shot"), (64 * MIB, "one_shot"), (64 * MIB + 16, None)]),
        (2, (8, 0), False, [(8 * MIB, "one_shot"), (8 * MIB + 16, None)]),
        (4, (9, 0), True, [(512 * KIB - 16, "one_shot"), (512 * KIB, "multimem"), (32 * MIB + 16, None)]),
        (4, (9, 0), False, [(512 * KIB - 16, "one_shot"), (512 * KIB, "two_shot"), (8 * MIB + 16, None)]),
        (4, (10, 0), True, [(512 * KIB, "two_shot"), (8 * MIB, "two_shot"), (8 * MIB + 16, None)]),
        (8, (9, 0), True, [(256 * KIB - 16, "one_shot"), (256 * KIB, "multimem"), (64 * MIB, "multimem")]),
        (8, (8, 0), False, [(256 * KIB - 16, "one_shot"), (256 * KIB, "two_shot"), (8 * MIB + 16, None)]),
        (6, (12, 0), True, [(256 * KIB, "two_shot"), (8 * MIB + 16, None)]),
    ],
)
def test_how_a_size_is_added(
    ranks: int, capability: tuple[int, int], multicast: bool, sizes: list[tuple[int, str | None]]
) -> None:
    ways = Ways.of(ranks, capability, multicast)
    for nbytes, way in [*sizes, (0, None), (8, None), (24, None)]:
        assert ways.choose(BF16, nbytes) == way, nbytes
        assert ways.choose(torch.float16, nbytes) is ways.choose(torch.float32, nbytes) is None


def test_what_the_log_says_of_them() -> None:
    begin = "all-reduces in bf16: one-shot"
    assert str(Ways.of(2, (9, 0), True)) == f"{begin} up to 64 MiB, above that by NCCL"
    assert str(Ways.of(8, (9, 0), True)) == f"{begin} below 256 KiB, by the switch up to 64 MiB, above that by NCCL"
    assert str(Ways.of(4, (8, 0), False)) == f"{begin} below 512 KiB, two-shot up to 8 MiB, above that by NCCL"


@pytest.mark.parametrize(
    ("ways", "called"),
    [(Ways(4, MIB, multimem=False), "two_shot"), (Ways(4, MIB, multimem=True), "multimem"), (Ways(2, MIB, False), "")],
)
def test_sums_are_those_of_the_backend(ways: Ways, called: str, tmp_path: Path) -> None:
    """Of every size, aligned or not; what is not for us the backend adds."""
    counts = (1, 8, 17, 896, 512 * KIB // 2 - 8, 512 * KIB // 2, MIB // 2 + 8)
    work = rank_symmetric_work.sums, ways, counts
    first, second = results_of(f"file:{tmp_path / 'bf16'}", 2, *work, BF16)
    large = called or "one_shot"
    expected = [rank_work.bits(rank_work.total(2, count, BF16)) for count in counts for _ in range(2)]
    assert first == second == (expected, ["one_shot"] * 6 + [large] * 2)
    (_, none), _ = results_of(f"file:{tmp_path / 'fp16'}", 2, *work, torch.float16)
    assert none == []


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Two GPUs of one host as torch has them, of which this is the second; tests change what they are."""
    found: dict[str, object] = {"capability": (9, 0), "count": 2, "peer": True, "multicast": 1}

    def memory_of_others(buffer: torch.Tensor, group: object) -> SimpleNamespace:
        assert group is GROUP
        if isinstance(found["multicast"], RuntimeError):
            raise found["multicast"]
        return SimpleNamespace(multicast_ptr=found["multicast"])

    def empty(count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        assert device == GPU
        if "memory" in found:
            raise RuntimeError(f"{found['memory']}\nException raised from")
        return torch.empty(count, dtype=dtype)

    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: found["capability"])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: found["count"])
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda device, other: found["peer"])
    monkeypatch.setattr(_symmetric_memory, "empty", empty)
    monkeypatch.setattr(_symmetric_memory, "rendezvous", memory_of_others)
    return found


def opened(least: Callable[[int], int] = int, size: int = 2, device: torch.device = GPU) -> SymmetricMemory | str:
    return open_symmetric_memory(1, size, device, cast(ProcessGroup, GROUP), least)


def test_what_ranks_agree_on(gpus: dict[str, object]) -> None:
    found = opened()
    assert isinstance(found, SymmetricMemory)
    assert found.ways == Ways(2, 64 * MIB, multimem=False)
    gpus["count"] = 8
    both = opened(size=8)
    assert isinstance(both, SymmetricMemory)
    assert both.ways == Ways(8, 64 * MIB, multimem=True)
    # Another rank has a GPU for which less is better, and no switch: each value is the least of all ranks'.
    less = opened(lambda value: min(value, 8 * MIB) if value > 1 else value, size=8)
    assert isinstance(less, SymmetricMemory)
    assert less.ways == Ways(8, 8 * MIB, multimem=True)
    gpus["multicast"] = 0
    alone = opened(size=8)
    assert isinstance(alone, SymmetricMemory)
    assert alone.ways == Ways(8, 8 * MIB, multimem=False)


@pytest.mark.parametrize(
    ("change", "size", "message"),
    [
        ({}, 3, "it is for 2, 4, 6 or 8 ranks of a layer, not for 3"),
        ({"capability": (7, 5)}, 2, "it needs GPUs of compute capability 8.0 or later"),
        ({"count": 1}, 2, "GPU 1 is not visible to rank 1"),
        ({"peer": False}, 2, "GPU 1 has no peer access to GPU 0"),
        ({"memory": "CUDA driver error"}, 2, "torch cannot allocate symmetric memory: CUDA driver error"),
        ({"multicast": RuntimeError("no")}, 2, "the ranks do not see each other's memory: no"),
    ],
)
def test_where_it_cannot_be(gpus: dict[str, object], change: dict[str, object], size: int, message: str) -> None:
    gpus.update(change)
    agreed: list[int] = []
    assert opened(lambda value: agreed.append(value) or value, size) == message  # type: ignore[func-returns-value]
    assert agreed[-1] == 0  # the others are told
    assert set(agreed[:-1]) <= {1, 64 * MIB}


@pytest.mark.parametrize("step", [1, 3, 4])
def test_another_rank_that_cannot(gpus: dict[str, object], step: int) -> None:
    """It says so after its step, and nobody goes on to the next."""
    agreed: list[int] = []

    def least(value: int) -> int:
        agreed.append(value)
        return 0 if len(agreed) == step else value

    assert opened(least) == "another rank cannot"
    assert len(agreed) == step


def test_it_is_for_gpus(gpus: dict[str, object]) -> None:
    assert opened(device=torch.device("cpu")) == "it is for NVIDIA's GPUs"


def test_a_group_without_it_adds_all_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    group = join_group(f"file:{tmp_path / 'store'}", 0, 1, "cpu", custom_allreduce=True)
    try:
        assert group.all_reduce(torch.full((8,), 3.0, dtype=BF16)).tolist() == [3.0] * 8
    finally:
        group.close()
    assert caplog.messages == [
        "--enable_custom_allreduce changes nothing, NCCL adds: it is for 2, 4, 6 or 8 ranks of a layer, not for 1"
    ]


@pytest.mark.parametrize(
    ("layout", "given"),
    [(RankLayout(2), True), (RankLayout(2, nodes=2), False), (RankLayout(1, 2, 2), True), (RankLayout(2, 2, 2), True)],
    ids=str,
)
def test_ranks_of_a_layer_have_to_be_on_one_machine(
    layout: RankLayout, given: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[bool] = []

    def join(*_: object, custom_allreduce: bool) -> tuple[None, None]:
        told.append(custom_allreduce)
        return None, None

    monkeypatch.setattr(joining, "join_group", join)
    monkeypatch.setattr("blade_llm.parallel.machines.join_stages", join)
    joining.join_ranks("tcp://127.0.0.1:1", layout, 0, "cuda", custom_allreduce=True)
    assert told == [given]
    assert [line for line in caplog.messages if "the ranks of a layer are on several machines" in line] == (
        [] if given else caplog.messages
    )
    assert len(caplog.messages) == (not given)


def test_who_starts_and_waits_on_its_gpu_for_a_lost_rank_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing ends the kernel that it waits for."""
    ended, built = threading.Event(), threading.Event()
    monkeypatch.setattr(build, "_STUCK_SECONDS", 0.05)
    monkeypatch.setattr(build.logging, "shutdown", lambda: None)
    monkeypatch.setattr(build.os, "_exit", lambda status: ended.set())
    with caplog.at_level(logging.ERROR):
        build._abort((None, None), 1, built)
        assert ended.wait(30)
    assert caplog.messages == ["rank 1 is lost, and this process waits for it on its GPU: it ends"]
    ended.clear()
    built.set()  # the error is on its way
    build._abort((None, None), 1, built)
    build._abort((None, None), 1, None)
    assert not ended.wait(0.3)
