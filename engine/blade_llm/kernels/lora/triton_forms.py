"""The forms in which the products of adapters are computed, by the number of tokens: decodes tuned on an H200."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Final


@dataclass(frozen=True, slots=True)
class Form:
    """Sizes of tiles."""

    rows: int
    """Tokens of a tile; all of one adapter."""
    depth: int
    """Inputs of a loop iteration of shrink."""
    columns: int
    """Outputs that a program of expand makes."""
    ranks: int
    """Ranks of a loop iteration of expand."""
    shrink_warps: int
    expand_warps: int
    stages: int


_DECODE: Final = Form(16, 128, 256, 16, 4, 2, 3)
"""Few tokens of each adapter: the least rows that a tensor core takes, and long reads, as its matrices are what is
waited for."""
_PREFILL: Final = Form(64, 64, 128, 16, 4, 4, 3)
PREFILL_TOKENS: Final = 512
"""From so many tokens on products have the form of prefills."""
_MOST_SPLITS: Final = 16
"""Parts that shrink cuts its inputs into, at most: whoever adds them up reads all of them."""
_SPLIT_TOKENS: Final = 8192
"""Tokens times splits are no more: their sums take memory."""
_FIXED_SPLITS: Final = 4
_WIDEST_RANKS: Final = 64
"""Ranks that a program of shrink computes at a time, where there are so many."""
WIDE_OUTPUTS: Final = 8192
"""Layers with fewer outputs are cut into blocks of half the size, so that there are enough of them."""
_SHRINK_PROGRAMS: Final = 4
"""Programs of shrink for each multiprocessor."""
EXPAND_PROGRAMS: Final = 16
"""Programs of expand for each multiprocessor, at most: one has several blocks of outputs where there are more."""


@cache
def form_of(tokens: int, element_size: int, deterministic: bool, shared_memory: int) -> Form:
    """The form for ``tokens``, with loads in flight trimmed to ``shared_memory`` bytes. ``element_size``: of what is
    multiplied."""
    form = _PREFILL if tokens >= PREFILL_TOKENS and not deterministic else _DECODE
    if element_size > 2:
        form = replace(form, depth=form.depth // 2, columns=form.columns // 2)
    stage = max((form.rows + _WIDEST_RANKS) * form.depth, form.ranks * form.columns) * element_size
    return replace(form, stages=max(1, min(form.stages, (shared_memory - 1024) // stage)))


def rows_of(tokens: int, deterministic: bool) -> int:
    """Tokens of a tile; the same for all layers of a step."""
    return (_PREFILL if tokens >= PREFILL_TOKENS and not deterministic else _DECODE).rows


def tiles_of(tokens: int, adapters: int, rows: int) -> int:
    """The most tiles that ``tokens`` of at most so many adapters fill."""
    return min(tokens, tokens // rows + adapters)


def most_splits(tokens: int, deterministic: bool) -> int:
    """Into how many parts shrink cuts its inputs at most; a smaller number where tiles alone fill the GPU."""
    return _FIXED_SPLITS if deterministic else max(1, min(_MOST_SPLITS, _SPLIT_TOKENS // max(tokens, 1)))


def programs_of(tiles: int, most: int, processors: int, deterministic: bool) -> int:
    """Programs of shrink for at most so many tiles: the device divides them among the tiles that there are."""
    wanted = tiles * most
    return wanted if deterministic else min(wanted, max(tiles, _SHRINK_PROGRAMS * processors))
