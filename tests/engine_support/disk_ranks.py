"""Two further ranks that read stand-ins for adapters, each with its own view of the disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from engine_support.adapter_core import Disk, Weights
from engine_support.rank_adapters import LocalRanks

from blade_llm.engine.adapters import LoadedAdapter
from blade_llm.engine.ranks.adapter_reads import RankAdapters
from blade_llm.engine.ranks.lost import RankFailedError


class RankDisk(Disk):
    """What one rank reads; what ``instead`` has for the name of a folder is called after reading it."""

    def __init__(self) -> None:
        super().__init__()
        self.instead: dict[str, Callable[[], Weights]] = {}

    def read(self, folder: Path) -> Weights:
        weights = super().read(folder)
        return self.instead.get(folder.name, lambda: weights)()


class DiskRanks(LocalRanks):
    """Ranks 1 and 2."""

    def __init__(self) -> None:
        self.disks = RankDisk(), RankDisk()
        self.loaded: tuple[dict[int, LoadedAdapter], ...] = ({}, {})
        self.lost: RankFailedError | None = None
        pairs = zip(self.disks, self.loaded, strict=True)
        super().__init__([RankAdapters(rank, *pair) for rank, pair in enumerate(pairs, 1)])

    def raise_if_lost(self) -> None:
        if self.lost is not None:
            raise self.lost


def other_weights() -> Weights:
    """Of another content than rank 0 has."""
    return Weights(b"other".ljust(32))
