"""What ranks do in tests of collectives; results are numbers and bytes, not tensors, to be sent between processes."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import torch
from torch import Tensor

from blade_llm.parallel.group import RankGroup
from blade_llm.parallel.shared_memory import SharedMemoryGroup
from blade_llm.parallel.shares import share_of

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def bits(x: Tensor) -> bytes:
    return x.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def numbers(rank: int, count: int, dtype: torch.dtype) -> Tensor:
    """What ``rank`` brings, known to all: of many magnitudes, so that the order of a sum shows."""
    generator = torch.Generator().manual_seed(1000 * rank + count)
    exponents = torch.randint(-12, 6, (count,), generator=generator)
    return (torch.randn(count, generator=generator) * 2.0**exponents).to(dtype)


def total(size: int, count: int, dtype: torch.dtype) -> Tensor:
    """The sum in rank order, in fp32, rounded once."""
    result = numbers(0, count, dtype).float()
    for rank in range(1, size):
        result += numbers(rank, count, dtype).float()
    return result.to(dtype)


def sums(group: RankGroup, counts: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> list[bytes]:
    """All-reduces one after the other."""
    found = []
    for dtype in dtypes:
        for count in counts:
            x = numbers(group.rank, count, dtype)
            assert group.all_reduce(x) is x
            found.append(bits(x))
    return found


def sums_by_threads(group: RankGroup, counts: tuple[int, ...], threads: int) -> list[bytes]:
    """As :func:`sums` in bf16, each rank with so many threads."""
    torch.set_num_threads(threads)
    return sums(group, counts, (torch.bfloat16,))


def special_sums(group: RankGroup, values: list[list[float]]) -> list[list[float]]:
    """Of each rank's own ``values``, in each type."""
    return [group.all_reduce(torch.tensor(values[group.rank]).to(dtype)).tolist() for dtype in DTYPES]


def many_small_sums(group: RankGroup, rounds: int, pause: float = 0.0) -> int:
    """How many were wrong, of small ones of changing sizes with others in between; ranks take turns in being late."""
    wrong = 0
    for index in range(rounds):
        if pause and index % 50 == group.rank:
            time.sleep(pause)
        x = torch.full((1 + index * 37 % 900,), float(index % 64 + group.rank), dtype=torch.bfloat16)
        group.all_reduce(x)
        expected = group.size * (index % 64) + group.size * (group.size - 1) // 2
        wrong += not bool((x == torch.tensor(float(expected)).bfloat16()).all())
        if index % 10 == 3:
            wrong += group.least(index + group.rank) != index
        if index % 100 == 7:
            gathered = group.all_gather(torch.tensor([group.rank, index]))
            wrong += gathered.tolist() != [number for rank in range(group.size) for number in (rank, index)]
        if index % 10 == 9:
            exchanged = group.all_to_all(torch.tensor([[group.rank * row, index] for row in range(group.size)]))
            wrong += exchanged.tolist() != [[each for rank in range(group.size) for each in (rank * group.rank, index)]]
    return wrong


def gathered(group: RankGroup, rows: int) -> list[bytes]:
    """Of types that cannot be added, shapes of several dimensions, and none at all."""
    generator = torch.Generator().manual_seed(group.rank)
    bytes_of = torch.randint(0, 256, (rows, 3), generator=generator, dtype=torch.uint8)
    found = []
    wide = bytes_of.T.contiguous()
    for x in (bytes_of, wide, bytes_of > 100, torch.tensor([group.rank * 2**40]), bytes_of.bfloat16(), bytes_of[:0]):
        result, width = group.all_gather(x), x.shape[-1]
        assert result.shape == (*x.shape[:-1], group.size * width)
        assert torch.equal(result[..., group.rank * width : (group.rank + 1) * width], x)
        found.append(bits(result))
    return found


def exchanged(group: RankGroup, rows: int) -> list[bytes]:
    """What an all-to-all gives this rank, which is its share of what a gathering gives all: of several types and
    widths, of nothing, and of fewer rows than there are ranks."""
    generator = torch.Generator().manual_seed(group.rank)
    bytes_of = torch.randint(0, 256, (rows, 3), generator=generator, dtype=torch.uint8)
    wide = bytes_of.T.contiguous()
    own_bytes = []
    for x in (bytes_of, wide, bytes_of > 100, bytes_of.bfloat16(), wide[:1].long(), bytes_of[:0], bytes_of[:, :0]):
        own = share_of(len(x), group.rank, group.size)
        found = group.all_to_all(x.contiguous())
        assert torch.equal(found, group.all_gather(x.contiguous())[own.start : own.stop])
        own_bytes.append(bits(found))
    return own_bytes


def leasts(group: RankGroup) -> list[int]:
    values = (-(2**62), 7 - group.rank, group.rank, -group.rank, 2**62 + group.rank)
    return [group.least(value) for value in values]


def out_of_step(group: RankGroup, case: str) -> str:
    """What the ranks are told where rank 1 does something else; later calls fail, too."""
    group.least(0)
    x = torch.ones(100, dtype=torch.bfloat16)
    if group.rank == 1 and case != "operation":
        x = {"length": torch.ones(200_000).bfloat16(), "type": x.half()}[case]
    call = group.all_gather if group.rank == 1 and case == "operation" else group.all_reduce
    messages = set()
    for _ in range(2):
        try:
            call(x)
        except RuntimeError as error:
            messages.add(f"{type(error).__name__}: {error}")
        else:
            return "nothing was noticed"
    return " / ".join(sorted(messages))


def waiting_for(group: RankGroup, missing: int, started: str) -> str:
    """Rank ``missing`` never comes; what the others are told. ``started``: files that say who waits."""
    group.all_reduce(torch.ones(3))
    Path(f"{started}-{group.rank}").touch()
    if group.rank == missing:
        time.sleep(60)
    try:
        group.all_reduce(torch.ones(500_000))
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "it came"


def late(group: RankGroup, missing: tuple[int, ...], seconds: float) -> str:
    """``missing`` come too late: what each rank is told."""
    group.least(0)
    if group.rank in missing:
        time.sleep(seconds)
    try:
        group.least(1)
        group.least(2)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "nobody was missed"


def leaving(group: RankGroup) -> str:
    """Rank 0 leaves after a collective that all finish, which others find at the next."""
    x = group.all_reduce(torch.ones(1_000_000))
    assert bool((x == group.size).all())
    if group.rank == 0:
        group.close()
    try:
        group.least(1)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "it came"


def aborted_by_a_thread(group: SharedMemoryGroup, lost: int) -> str:
    """Rank 0 waits in one thread and aborts in another; nobody else comes but by waiting too, ``lost`` apart."""
    group.least(0)
    if group.rank == lost:
        time.sleep(1)
        return "lost"
    if group.rank == 0:
        threading.Timer(0.3, group.abort, (lost,)).start()
    try:
        group.least(1)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "it came"


def aborting(group: RankGroup, done: Path) -> list[str]:
    """Rank 1 comes to no collective until rank 0, which is told so, has tried all of them: what that was told."""
    said: list[str] = []
    if group.rank:
        while not done.exists():
            time.sleep(0.01)
        return said
    threading.Timer(0.2, group.abort, (1,)).start()
    x = torch.ones(2, 4)
    for collective in (group.all_reduce, group.all_gather, group.all_to_all, lambda _: group.least(1)):
        try:
            collective(x)
        except RuntimeError as error:
            said.append(f"{type(error).__name__}: {error}")
    done.touch()
    return said
