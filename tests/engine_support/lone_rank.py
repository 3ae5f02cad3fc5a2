"""One rank by itself, at the shapes that it has among others: for what must not depend on these, such as graphs."""

from __future__ import annotations

import torch

from blade_llm.parallel.shares import share_of


class LoneRank:
    """Implements :class:`blade_llm.parallel.group.RankGroup` on the device alone, so that graphs can repeat it: the
    others add nothing to a sum, and have what this one has."""

    native = None

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x] * self.size, dim=-1)

    def all_to_all(self, x: torch.Tensor) -> torch.Tensor:
        own = share_of(len(x), self.rank, self.size)
        return torch.cat([x[own.start : own.stop]] * self.size, dim=-1)

    def least(self, value: int) -> int:
        return value

    def abort(self, lost_rank: int) -> None:
        raise AssertionError(f"rank {lost_rank} is not there")

    def close(self) -> None:
        pass
