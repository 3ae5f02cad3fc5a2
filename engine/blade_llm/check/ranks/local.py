"""``check_ranks``: can the ranks of this machine meet, and how long does an all-reduce between them take?"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Final

from blade_llm.check.ranks.all_reduce import Measured, Task, first_cause, measure, summary
from blade_llm.check.shm import SHM
from blade_protocol.check import CheckItem

NAME: Final = "check_ranks"
SEGMENT_BYTES: Final = 3 << 19
"""Shared memory of each rank on a CPU (:func:`blade_llm.parallel.shared_memory.create_segment`)."""


def check_ranks(ranks: int, folder: Path = SHM) -> CheckItem:
    """PASS when ``ranks`` processes of this machine have added up; WARNING for GPUs that do not reach each other's
    memory; FAILED otherwise. ``folder``: where shared memory is."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    problem = _gpu_problem(ranks, gpus) if gpus else _shared_memory_problem(ranks, folder)
    if problem:
        return CheckItem(name=NAME, status="FAILED", detail=problem)
    way, measured = asyncio.run(_measure_here(ranks, gpus, folder))
    if cause := first_cause(dict(enumerate(measured))):
        rank, problem = cause
        return CheckItem(
            name=NAME, status="FAILED", detail=f"{ranks} ranks do not meet through {way}: rank {rank}: {problem}"
        )
    slowest = max(measured, key=lambda each: each.large_seconds)
    detail = f"{ranks} ranks through {way}: {summary(slowest)}"
    if apart := _apart(ranks) if gpus else []:
        pairs = ", ".join(f"{a} and {b}" for a, b in apart[:4]) + (" and more" if len(apart) > 4 else "")
        return CheckItem(
            name=NAME,
            status="WARNING",
            detail=f"{detail}; GPUs {pairs} have no peer access, their sums go through host memory; use GPUs of one "
            "NVLink or PCIe switch, or a lower --tensor_parallel_size",
        )
    return CheckItem(name=NAME, status="PASS", detail=detail)


def _gpu_problem(ranks: int, gpus: int) -> str:
    import torch.distributed as dist

    if gpus < ranks:
        return f"{ranks} ranks need as many GPUs, {gpus} are visible; give the container more, or lower the degrees"
    if not (dist.is_available() and dist.is_nccl_available()):
        return "this torch is built without NCCL, which GPUs add up with; install a build of torch for CUDA"
    return ""


def _shared_memory_problem(ranks: int, folder: Path) -> str:
    try:
        stat = os.statvfs(folder)
    except OSError as error:
        return f"{folder} cannot be used ({error.strerror}); mount a writable tmpfs there"
    free, need = stat.f_bavail * stat.f_frsize, ranks * SEGMENT_BYTES
    if free < need:
        return (
            f"{ranks} ranks need {need} bytes of shared memory, {folder} has {free} free; give the container a larger "
            f"{folder} (emptyDir, medium: Memory)"
        )
    return ""


def _apart(ranks: int) -> list[tuple[int, int]]:
    """Pairs of GPUs that do not read each other's memory."""
    import torch

    return [(a, b) for a in range(ranks) for b in range(a + 1, ranks) if not torch.cuda.can_device_access_peer(a, b)]


async def _measure_here(ranks: int, gpus: int, folder: Path) -> tuple[str, list[Measured]]:
    """What the ranks meet through, and what each has measured."""
    from blade_llm.parallel.shared_memory import MAX_RANKS, create_segment, is_available

    segment: Path | None = None
    with tempfile.TemporaryDirectory(prefix="blade_llm-") as private:
        if not gpus and is_available() and ranks <= MAX_RANKS:
            segment = create_segment(ranks, folder)
            way, address = "shared memory", f"shm:{segment}"
        else:
            way, address = "NCCL" if gpus else "gloo", f"file:{Path(private) / 'ranks'}"
        try:
            tasks = [
                measure(Task(address=address, rank=rank, size=ranks, device=rank if gpus else None))
                for rank in range(ranks)
            ]
            return way, await asyncio.gather(*tasks)
        finally:
            if segment is not None:
                segment.unlink(missing_ok=True)
