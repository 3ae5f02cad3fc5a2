"""What ranks do in tests of all-reduces of our own, on CPUs: gloo stands in for torch's kernels, the rest is real."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from engine_support import rank_work
from torch import Tensor

from blade_llm.parallel.symmetric_memory import SymmetricMemory, Ways
from blade_llm.parallel.torch_group import TorchGroup


class GlooOperators:
    """Computes what the operators of ``torch.ops.symm_mem`` do, with their arguments, in fp32."""

    def __init__(self, buffer: Tensor) -> None:
        self.called: list[str] = []
        self._buffer = buffer

    def one_shot_all_reduce_copy_out(
        self, shared: Tensor, own: Tensor, operation: str, group: str, out: Tensor
    ) -> None:
        self._check(shared, operation, group)
        assert shared.shape == own.shape == out.shape
        assert own.data_ptr() % 16 == out.data_ptr() % 16 == own.storage_offset() * own.itemsize % 16 == 0
        self.called.append("one_shot")
        shared.copy_(own)
        out.copy_(_sum(shared))

    def two_shot_all_reduce_(self, shared: Tensor, operation: str, group: str) -> None:
        self._check(shared, operation, group)
        self.called.append("two_shot")
        shared.copy_(_sum(shared))

    def multimem_all_reduce_(self, shared: Tensor, operation: str, group: str) -> None:
        self._check(shared, operation, group)
        self.called.append("multimem")
        shared.copy_(_sum(shared))

    def _check(self, shared: Tensor, operation: str, group: str) -> None:
        assert (operation, group) == ("sum", "ranks")
        assert (shared.dtype, shared.dim(), shared.is_contiguous()) == (torch.bfloat16, 1, True)
        assert shared.nbytes % 16 == 0
        assert shared.data_ptr() == self._buffer.data_ptr()


def _sum(x: Tensor) -> Tensor:
    total = x.float()
    dist.all_reduce(total)
    return total.to(x.dtype)


def sums(group: TorchGroup, ways: Ways, counts: tuple[int, ...], dtype: torch.dtype) -> tuple[list[Any], list[str]]:
    """All-reduces of so many numbers, the last of each at an odd address; and which operators they took."""
    buffer = torch.empty(ways.most_bytes // 2, dtype=torch.bfloat16)
    operators = GlooOperators(buffer)
    group._symmetric = SymmetricMemory(buffer, ways, "ranks", operators)
    found = []
    for count in counts:
        for offset in (0, 1):
            x = torch.zeros(count + offset, dtype=dtype)[offset:]
            x.copy_(rank_work.numbers(group.rank, count, dtype))
            assert group.all_reduce(x) is x
            found.append(rank_work.bits(x))
    return found, operators.called
