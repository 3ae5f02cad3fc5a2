"""The forms in which the products of adapters are computed, by the number of tokens. Not tuned on a GPU yet."""

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
    warps: int
    stages: int


_DECODE: Final = Form(16, 128, 256, 4, 3)
"""Few tokens of each adapter: the least rows that a tensor core takes, and long reads, as its matrices are what is
waited for."""
_PREFILL: Final = Form(64, 64, 128, 4, 3)
PREFILL_TOKENS: Final = 512
"""From so many tokens on products have the form of prefills."""
_MOST_SPLITS: Final = 16
_LEAST_INPUTS: Final = 256
"""A split of shrink has at least so many inputs."""
_FIXED_SPLITS: Final = 4
_WIDEST_RANKS: Final = 64
"""Ranks that a program computes at a time, where there are so many."""


@cache
def form_of(tokens: int, element_size: int, deterministic: bool, shared_memory: int) -> Form:
    """The form for ``tokens``, with loads in flight trimmed to ``shared_memory`` bytes. ``element_size``: of what is
    multiplied."""
    form = _PREFILL if tokens >= PREFILL_TOKENS and not deterministic else _DECODE
    if element_size > 2:
        form = replace(form, depth=form.depth // 2, columns=form.columns // 2)
    stage = max((form.rows + _WIDEST_RANKS) * form.depth, _WIDEST_RANKS * form.columns) * element_size
    return replace(form, stages=max(1, min(form.stages, (shared_memory - 1024) // stage)))


def rows_of(tokens: int, deterministic: bool) -> int:
    """Tokens of a tile; the same for all layers of a step."""
    return (_PREFILL if tokens >= PREFILL_TOKENS and not deterministic else _DECODE).rows


def tiles_of(tokens: int, adapters: int, rows: int) -> int:
    """The most tiles that ``tokens`` of at most so many adapters fill."""
    return min(tokens, tokens // rows + adapters)


@cache
def splits_of(tiles: int, inputs: int, processors: int, deterministic: bool) -> int:
    """Into how many parts shrink cuts its inputs: enough to fill ``processors`` with ``tiles``, a power of two. Whoever
    adds the parts up reads all of them."""
    most = min(_MOST_SPLITS, max(1, inputs // _LEAST_INPUTS))
    wanted = _FIXED_SPLITS if deterministic else -(-4 * processors // tiles)
    return 1 << (max(1, min(most, wanted)).bit_length() - 1)
