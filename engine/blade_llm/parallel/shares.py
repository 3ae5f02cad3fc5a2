"""How the rows of a step are divided among ranks that each do a part of them."""

from __future__ import annotations


def share_of(rows: int, rank: int, size: int) -> range:
    """The rows of ``rank``: as many as of any other rank, or one more or fewer; none where there are too few."""
    return range(rows * rank // size, rows * (rank + 1) // size)
