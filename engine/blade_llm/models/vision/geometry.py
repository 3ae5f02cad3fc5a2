"""The order of an image's patches in a vision tower, and which of them see each other. No torch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
MAX_PIECE: Final = 1024
"""Most rows, or embeddings, that are computed at a time, which bounds the memory that they take meanwhile."""
MAX_KEYS: Final = 4096
"""Most keys that rows see with all heads at a time, which may be copied meanwhile; of more, some heads."""


@dataclass(frozen=True, slots=True)
class FrameOrder:
    """The patches of one frame, those of an embedding one after the other."""

    rows: Indices
    """[patches]: where each is."""
    columns: Indices
    """[patches]."""
    embeddings: Indices
    """[embeddings]: which embedding of the frame the patches make, in their order."""
    windows: tuple[int, ...]
    """Patches of each window, one window after the other; empty without windows."""


def frame_order(height: int, width: int, merge: int, window: int) -> FrameOrder:
    """Of ``height`` x ``width`` patches, ``merge`` x ``merge`` of which make an embedding.

    ``window``: patches on each side of a window; 0: there are none, and embeddings are in order. Windows begin at the
    upper left, so that those at the other edges may be smaller.
    """
    across = width // merge
    embeddings = np.arange(height // merge * across)
    lengths: tuple[int, ...] = ()
    if window:
        side = window // merge
        block_rows, block_columns = np.divmod(embeddings, across)
        windows = block_rows // side * -(-across // side) + block_columns // side
        embeddings = np.argsort(windows, kind="stable")
        lengths = tuple((np.bincount(windows) * merge**2).tolist())
    block_rows, block_columns = np.divmod(embeddings, across)
    inner_rows, inner_columns = np.divmod(np.arange(merge**2), merge)
    rows = (block_rows[:, None] * merge + inner_rows).reshape(-1)
    columns = (block_columns[:, None] * merge + inner_columns).reshape(-1)
    return FrameOrder(rows, columns, embeddings, lengths)


@dataclass(frozen=True, slots=True)
class Block:
    """Queries that see the same keys, or equally many whole spans of equal length one after the other."""

    queries: slice
    keys: slice
    spans: int
    """Whole spans; 1 where queries may be only some of one."""


class Spans:
    """Rows that see each other, span after span."""

    __slots__ = ("starts",)

    def __init__(self, lengths: Sequence[int]) -> None:
        self.starts: list[int] = [0, *np.cumsum(lengths).tolist()]
        """Of each span, and behind them the end of the last."""

    def blocks(self, first: int, end: int) -> Iterator[Block]:
        """The attention of the rows from ``first`` up to ``end``."""
        starts = self.starts
        index = bisect_right(starts, first) - 1
        while first < end:
            begin, stop = starts[index], starts[index + 1]
            spans, length = 1, stop - begin
            if first == begin:
                while stop + length <= end and starts[index + spans + 1] == stop + length:
                    spans, stop = spans + 1, stop + length
            reached = min(stop, end)
            yield Block(slice(first, reached), slice(begin, stop), spans)
            index, first = index + spans, reached

    def affordable(self, first: int, end: int, products: int, pair: int, *, whole: bool = False) -> tuple[int, int]:
        """Where a piece from ``first`` on ends that takes at most so many products, but has one row at least, and how
        many it takes; ``whole``: it ends at ``end`` whatever it takes. ``pair``: products of a query and a key."""
        taken = 0
        for block in self.blocks(first, end):
            each = pair * ((block.keys.stop - block.keys.start) // block.spans)
            rows = block.queries.stop - block.queries.start
            fit = rows if whole else min(rows, max(0, products - taken) // each)
            if fit < rows:
                fit = max(fit, int(not taken))
                return block.queries.start + fit, taken + fit * each
            taken += rows * each
        return end, taken
