"""How long an all-reduce takes between ranks, each a process: ``python -m blade_llm.check.ranks.all_reduce``.

A process, because a collective that hangs cannot be interrupted; this one is killed. It joins the ranks as the engine
does (:func:`blade_llm.parallel.build.join_group`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from blade_llm.parallel.group import RankGroup

SMALL_BYTES: Final = 16 << 10
"""The hidden states of one token of a large model."""
LARGE_BYTES: Final = 16 << 20
"""Those of a prefill."""
SECONDS: Final = 0.2
"""How long each size is measured."""
LIMIT_SECONDS: Final = 90.0
"""After so long a measurement has failed; most of it is the import of torch on a cold disk."""
_LEAST_TIMES: Final = 3
_LATE: Final = "took more than"
_CONSEQUENCES: Final = ("RankLostError", _LATE)
"""How problems begin that are those of another rank, which is gone or never came."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """Who measures with whom; the process's standard input."""

    address: str
    """Of :func:`blade_llm.parallel.build.join_group`."""
    rank: int
    size: int
    device: int | None
    """Number of the GPU; None: the CPU."""
    seconds: float = LIMIT_SECONDS
    """How long to wait for the others."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank has measured; the process's standard output."""

    small_seconds: float = 0.0
    """Of an all-reduce of ``SMALL_BYTES``."""
    large_seconds: float = 0.0
    """Of one of ``LARGE_BYTES``."""
    problem: str = ""
    """Why there are no figures."""

    @property
    def bandwidth(self) -> float:
        """Bytes a second of a large one."""
        return LARGE_BYTES / self.large_seconds


async def measure(task: Task) -> Measured:
    """Run the process, and kill it when it takes too long."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        __name__,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(msgspec.json.encode(task)), task.seconds)
    except TimeoutError:
        return Measured(problem=f"{_LATE} {task.seconds:.0f} s")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    try:
        return msgspec.json.decode(output, type=Measured)
    except msgspec.DecodeError:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        return Measured(problem=f"the process ended with {process.returncode}: {last[:300]}")


def summary(measured: Measured) -> str:
    """The figures in words."""
    return (
        f"an all-reduce of {SMALL_BYTES >> 10} KiB takes {measured.small_seconds * 1e6:.0f} us, "
        f"of {LARGE_BYTES >> 20} MiB {measured.large_seconds * 1e3:.1f} ms ({measured.bandwidth / 1e9:.2f} GB/s)"
    )


def first_cause(measured: Mapping[int, Measured]) -> tuple[int, str] | None:
    """The rank that is to blame and what it says, if one has a problem: not one that only misses the others."""
    problems = {rank: each.problem for rank, each in measured.items() if each.problem}
    return min(problems.items(), key=lambda item: (item[1].startswith(_CONSEQUENCES), item[0]), default=None)


def _measure(task: Task) -> Measured:
    import torch

    from blade_llm.parallel.build import join_group

    torch.set_num_threads(1)
    if task.device is not None:
        torch.cuda.set_device(task.device)
    kind = "cpu" if task.device is None else "cuda"
    group = join_group(task.address, task.rank, task.size, kind, task.seconds)
    try:
        small, large = (_time(group, size, kind) for size in (SMALL_BYTES, LARGE_BYTES))
        group.least(0)  # nobody leaves before all are done
    finally:
        group.close()
    return Measured(small_seconds=small, large_seconds=large)


def _time(group: RankGroup, size: int, kind: str) -> float:
    """Seconds of one all-reduce of ``size`` bytes: the median of as many as fit; all ranks do as many."""
    import torch

    def once() -> float:
        x.fill_(1.0)
        group.least(0)
        start = time.perf_counter()
        group.all_reduce(x)
        if kind == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        if x[0].item() != group.size or x[-1].item() != group.size:
            raise RuntimeError(f"the sum of {group.size} ones is {x[0].item()}")
        return seconds

    x = torch.ones(size // 4, dtype=torch.float32, device=kind)
    once()
    times = group.least(max(_LEAST_TIMES, min(100, int(SECONDS / max(once(), 1e-6)))))
    return median(once() for _ in range(times))


def main() -> int:
    """Entry point of the process."""
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    output = os.dup(1)
    os.dup2(2, 1)  # libraries may print
    try:
        measured = _measure(task)
    except Exception as error:
        measured = Measured(problem=f"{type(error).__name__}: {error}"[:500])
    os.write(output, msgspec.json.encode(measured))
    sys.stderr.flush()
    os._exit(0)  # a group that is broken may not close


if __name__ == "__main__":
    sys.exit(main())
