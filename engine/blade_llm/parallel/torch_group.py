"""Ranks that meet through torch.distributed: those on GPUs, those of several hosts, and those without native operators.

On CPUs it defines what :mod:`blade_llm.parallel.shared_memory` has to compute.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from blade_llm.parallel.group import RankLostError
from blade_llm.parallel.shares import share_of
from blade_llm.parallel.symmetric_memory import NO_CUSTOM_ALLREDUCE, SymmetricMemory, open_symmetric_memory
from blade_llm.parallel.waiting import LONGEST_SLEEP

logger = logging.getLogger(__name__)
_CHECK: Final = timedelta(seconds=LONGEST_SLEEP)
"""How often who waits for gloo looks whether a rank is known to be lost."""


class TorchGroup:
    """Implements :class:`~blade_llm.parallel.group.RankGroup`; the default process group, so one in a process."""

    def __init__(
        self,
        init_method: str,
        rank: int,
        size: int,
        device_type: str,
        timeout: float = 60.0,
        *,
        custom_allreduce: bool = False,
    ) -> None:
        """``init_method``: ``tcp://host:port`` of rank 0, or ``file:///path`` of a file that is not there yet.

        ``device_type``: cpu (gloo) or cuda (NCCL). ``timeout``: seconds to wait for the others, here and in each
        collective. ``custom_allreduce``: add by kernels of our own where that can be, on GPUs of one host that follow
        each other. Raises :class:`RankLostError`.
        """
        self._rank, self._size = rank, size
        self._lost = False
        on_gpu = device_type == "cuda"
        self._device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        with _failures("join the group"):
            dist.init_process_group(
                "nccl" if on_gpu else "gloo",
                init_method=init_method,
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=timeout),
                device_id=self._device if on_gpu else None,
            )
        self._symmetric: SymmetricMemory | None = None
        if custom_allreduce:
            self._open_symmetric_memory()

    def _open_symmetric_memory(self) -> None:
        assert dist.group.WORLD is not None
        found = open_symmetric_memory(self._rank, self._size, self._device, dist.group.WORLD, self.least)
        if isinstance(found, SymmetricMemory):
            self._symmetric = found
            logger.info("%s", found.ways)
        elif self._rank == 0:
            logger.warning("%s: %s", NO_CUSTOM_ALLREDUCE, found)

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size

    @property
    def native(self) -> int | None:
        return None

    def all_reduce(self, x: Tensor) -> Tensor:
        """See the protocol. The order of the sum is the backend's, and all get the result of the rank that added."""
        if self._symmetric is not None and self._symmetric.all_reduce(x):
            return x
        # The backends round each partial sum to the type that they get. Between GPUs half the bytes count more.
        total = x if self._device.type == "cuda" or x.dtype == torch.float32 else x.float()
        self._run("all_reduce", lambda wait: dist.all_reduce(total, async_op=not wait))
        return x if total is x else x.copy_(total)

    def all_gather(self, x: Tensor) -> Tensor:
        out = x.new_empty((self._size, *x.shape))
        self._run("all_gather", lambda wait: dist.all_gather_into_tensor(_bytes(out), _bytes(x), async_op=not wait))
        return out.movedim(0, -2).reshape(*x.shape[:-1], self._size * x.shape[-1])

    def all_to_all(self, x: Tensor) -> Tensor:
        rows, width = x.shape
        shares = [len(share_of(rows, rank, self._size)) for rank in range(self._size)]
        own, row_bytes = shares[self._rank], width * x.itemsize
        out = x.new_empty(self._size, own, width)
        given, taken = [share * row_bytes for share in shares], [own * row_bytes] * self._size
        self._run(
            "all_to_all",
            lambda wait: dist.all_to_all_single(_bytes(out), _bytes(x), taken, given, async_op=not wait),
        )
        return out.transpose(0, 1).reshape(own, self._size * width)

    def least(self, value: int) -> int:
        number = torch.tensor([value], dtype=torch.int64, device=self._device)
        self._run("least", lambda wait: dist.all_reduce(number, dist.ReduceOp.MIN, async_op=not wait))
        return int(number)

    def abort(self, lost_rank: int) -> None:
        """See the protocol. gloo notices when a process is gone, but not one that hangs; NCCL neither.

        Nothing ends a kernel of symmetric memory that waits for the rank: who has launched it must not wait for it.
        """
        self._lost = True
        if self._device.type == "cuda":
            dist.distributed_c10d._abort_process_group()

    def _run(self, operation: str, collective: Callable[[bool], dist.Work | None]) -> None:
        """Compute a collective, which is given whether it has to wait itself: on a GPU it does so in its stream."""
        with _failures(operation):
            work = collective(self._device.type == "cuda")
            if work is None:
                return
            while not _ended(work):  # gloo cannot be interrupted
                if self._lost:
                    raise RuntimeError("it was given up")

    def close(self) -> None:
        self._symmetric = None
        if dist.is_initialized():
            dist.destroy_process_group()


def _ended(work: dist.Work) -> bool:
    """Whether the collective has ended within :data:`_CHECK`; raises RuntimeError, its own where it failed."""
    try:
        work.wait(_CHECK)
    except RuntimeError:
        if work.is_completed():
            raise
        return False
    return True


def _bytes(x: Tensor) -> Tensor:
    """Backends know few types."""
    return x.view(-1).view(torch.uint8)


@contextmanager
def _failures(operation: str) -> Iterator[None]:
    """Errors of the backend, which are of many kinds and name no rank."""
    try:
        yield
    except RuntimeError as error:
        raise RankLostError(f"another rank is lost: {operation} failed: {error}") from error
