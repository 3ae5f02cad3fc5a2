"""Which part of a model one rank has: a part of every layer, or of a pipeline some of the layers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shard:
    """Rank ``rank`` of ``size``."""

    rank: int
    size: int
    expert_parallel: bool = False
    """Experts are divided as wholes, not each one's inner dimension."""

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

    def share_of(self, count: int) -> range:
        """This rank's part of ``count`` things, of which others may have one more or less."""
        return range(count * self.rank // self.size, count * (self.rank + 1) // self.size)


@dataclass(frozen=True, slots=True)
class Stage:
    """Stage ``index`` of the ``count`` of a pipeline."""

    index: int
    count: int
    layers: range
    """The stage's, among the model's."""
    num_layers: int
    """The model's."""

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ValueError(f"stage {self.index} of {self.count} stages; stages are counted from 0")

    @property
    def first(self) -> bool:
        """Whether it begins with the tokens."""
        return self.index == 0

    @property
    def last(self) -> bool:
        """Whether it ends with the logits."""
        return self.index == self.count - 1
