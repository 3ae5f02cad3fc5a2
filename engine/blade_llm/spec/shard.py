"""Which part of a model one rank of a tensor-parallel group has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shard:
    """Rank ``rank`` of ``size``."""

    rank: int
    size: int

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} of {self.size} ranks; ranks are counted from 0")

    def part_of(self, count: int) -> range:
        """This rank's part of ``count`` things that are divided into equal parts. Raises ``ValueError`` where they
        cannot be."""
        if count % self.size:
            raise ValueError(f"{count} cannot be divided into {self.size} equal parts")
        each = count // self.size
        return range(self.rank * each, (self.rank + 1) * each)
