"""All-reduces of our own between the GPUs of one host, over NVLink (``--enable_custom_allreduce``).

Every rank sees the others' buffers (torch's symmetric memory). One-shot: each reads what all others have and adds;
two-shot: each adds a part, and writes the sum to all; multimem: the switch adds what a rank reads of its part (NVLink
SHARP). All are one kernel, which signals, adds and signals, so they can be in CUDA graphs. All ranks add in the order
of ranks, or take a sum from the one that made it: they get the same bits.

Sizes are vLLM's: where one-shot ends
(https://github.com/vllm-project/vllm/blob/036bb685581dbedcd6cf7fc845fe87268c7d1191/csrc/custom_all_reduce.cuh), where
NCCL is better again
(https://github.com/vllm-project/vllm/blob/00d618aab60448acdf3fac3e9c4e2e22d0c6c753/vllm/distributed/device_communicators/all_reduce_utils.py),
and how many ranks the switch adds for
(https://github.com/vllm-project/vllm/blob/00859a52088e757514a25dddd0214ccc89898a1c/vllm/distributed/device_communicators/symm_mem.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

Way = Literal["one_shot", "two_shot", "multimem"]
Capability = tuple[int, int]

NO_CUSTOM_ALLREDUCE: Final = "--enable_custom_allreduce changes nothing, NCCL adds"
"""Begins the line that says why."""
DTYPE: Final = torch.bfloat16
"""The only type of 16 bits that torch's kernels add; sums in others are NCCL's."""
SIZES: Final = (2, 4, 6, 8)
"""Ranks that add."""
ALIGNMENT: Final = 16
"""Bytes that a thread of the kernels moves at once."""
_KIB: Final = 1 << 10
_MIB: Final = 1 << 20
_PEER_BYTES: Final = 8 * _MIB
"""Of other GPUs, and without the switch."""
_MOST_BYTES: Final[Mapping[Capability, Mapping[int, int]]] = {
    (9, 0): {2: 64 * _MIB, 4: 32 * _MIB, 6: 64 * _MIB, 8: 64 * _MIB},
    (10, 0): {2: 8 * _MIB, 4: 32 * _MIB, 6: 128 * _MIB, 8: 128 * _MIB},
    (10, 3): {2: 4 * _MIB, 4: 32 * _MIB, 6: 32 * _MIB, 8: 64 * _MIB},
}
_MULTIMEM_SIZES: Final[Mapping[Capability, tuple[int, ...]]] = {(9, 0): (4, 6, 8), (10, 0): (6, 8), (10, 3): (6, 8)}
_LEAST_CAPABILITY: Final[Capability] = (8, 0)


@dataclass(frozen=True, slots=True)
class Ways:
    """Which sums are of our own, and how: the same on all ranks."""

    ranks: int
    most_bytes: int
    """Larger ones are NCCL's."""
    multimem: bool
    """The switch adds what is too large for one-shot."""

    @classmethod
    def of(cls, ranks: int, capability: Capability, multicast: bool) -> Ways:
        """For GPUs of ``capability``. ``multicast``: their switch adds and copies."""
        known = _MOST_BYTES.get(capability, {}).get(ranks, _PEER_BYTES)
        multimem = multicast and ranks in _MULTIMEM_SIZES.get(capability, ())
        return cls(ranks, known if multimem or ranks == 2 else min(known, _PEER_BYTES), multimem)

    @property
    def one_shot_bytes(self) -> int:
        """From here on something else is faster. Between two ranks nothing is: a rank reads as much either way."""
        if self.ranks == 2:
            return self.most_bytes + 1
        return 512 * _KIB if self.ranks <= 4 else 256 * _KIB

    def choose(self, dtype: torch.dtype, nbytes: int) -> Way | None:
        """How ``nbytes`` of each rank are added; None: NCCL does it."""
        if dtype != DTYPE or not 0 < nbytes <= self.most_bytes or nbytes % ALIGNMENT:
            return None
        if nbytes < self.one_shot_bytes:
            return "one_shot"
        return "multimem" if self.multimem else "two_shot"

    def __str__(self) -> str:
        small = "" if self.ranks == 2 else f" below {self.one_shot_bytes // _KIB} KiB"
        large = "" if self.ranks == 2 else ", by the switch" if self.multimem else ", two-shot"
        return f"all-reduces in bf16: one-shot{small}{large} up to {self.most_bytes // _MIB} MiB, above that by NCCL"


class SymmetricMemory:
    """Adds what :class:`Ways` says, through a buffer that all ranks see. One stream at a time."""

    def __init__(self, buffer: Tensor, ways: Ways, group_name: str, operators: Any = None) -> None:
        """``buffer``: [elements] bf16, of ``ways.most_bytes``, which :func:`open_symmetric_memory` has made known to
        the ranks of the process group ``group_name``. ``operators``: those of ``torch.ops.symm_mem``."""
        self.ways = ways
        self._buffer, self._group_name = buffer, group_name
        self._operators: Any = torch.ops.symm_mem if operators is None else operators

    def all_reduce(self, x: Tensor) -> bool:
        """Overwrite ``x`` (contiguous) with the sum of the ranks'; False: it is not one for us, and is as it was."""
        way = self.ways.choose(x.dtype, x.nbytes)
        if way is None:
            return False
        flat = x.view(-1)
        shared = self._buffer[: flat.numel()]
        if way == "one_shot":
            # The kernel copies to the buffer, too. It takes no addresses but such as allocations have.
            aligned = flat.data_ptr() % ALIGNMENT == 0 and flat.storage_offset() * flat.itemsize % ALIGNMENT == 0
            own = flat if aligned else flat.clone()
            self._operators.one_shot_all_reduce_copy_out(shared, own, "sum", self._group_name, own)
            if own is not flat:
                flat.copy_(own)
            return True
        shared.copy_(flat)
        add = self._operators.multimem_all_reduce_ if way == "multimem" else self._operators.two_shot_all_reduce_
        add(shared, "sum", self._group_name)
        flat.copy_(shared)
        return True


def open_symmetric_memory(
    rank: int, size: int, device: torch.device, group: ProcessGroup, least: Callable[[int], int]
) -> SymmetricMemory | str:
    """The symmetric memory of the ``size`` ranks of ``group``, whose GPUs are this host's and follow each other; or why
    there is none, on all of them.

    ``device``: of this rank. ``least``: the least of what all ranks give, by which they agree after each step, as the
    next one waits for all of them.
    """
    another = "another rank cannot"
    problem = devices_problem(rank, size, device)
    if not least(int(problem is None)):
        return problem or another
    from torch.distributed import _symmetric_memory as memory

    capability = torch.cuda.get_device_capability(device)
    most = least(Ways.of(size, capability, multicast=True).most_bytes)
    buffer = torch.empty(0)
    try:
        buffer = memory.empty(most // DTYPE.itemsize, dtype=DTYPE, device=device)
    except RuntimeError as error:
        problem = f"torch cannot allocate symmetric memory: {_first_line(error)}"
    if not least(int(problem is None)):
        return problem or another
    multicast = 0
    try:
        multicast = int(memory.rendezvous(buffer, group).multicast_ptr != 0)
    except RuntimeError as error:
        problem = f"the ranks do not see each other's memory: {_first_line(error)}"
    if not least(int(problem is None)):
        return problem or another
    ways = Ways.of(size, capability, bool(least(multicast)))
    ways = Ways(size, least(ways.most_bytes), bool(least(int(ways.multimem))))
    return SymmetricMemory(buffer, ways, group.group_name)


def devices_problem(rank: int, size: int, device: torch.device) -> str | None:
    """Why the GPUs of ``size`` ranks cannot add by themselves as far as this rank sees; None: they may."""
    if size not in SIZES:
        return f"it is for 2, 4, 6 or 8 ranks of a layer, not for {size}"
    if device.type != "cuda" or torch.version.cuda is None:
        return "it is for NVIDIA's GPUs"
    if torch.cuda.get_device_capability(device) < _LEAST_CAPABILITY:
        return "it needs GPUs of compute capability 8.0 or later"
    if not hasattr(torch.ops.symm_mem, "one_shot_all_reduce_copy_out"):
        return f"torch {torch.__version__} has no symmetric memory"
    first = (device.index or 0) - rank
    for other in range(first, first + size):
        if not 0 <= other < torch.cuda.device_count():
            return f"GPU {other} is not visible to rank {rank}"
        if other != device.index and not torch.cuda.can_device_access_peer(device, other):
            return f"GPU {device.index} has no peer access to GPU {other}"
    return None


def _first_line(error: RuntimeError) -> str:
    return str(error).partition("\n")[0]
