"""The forms of the attention kernels: how wide their tiles are, and how many loads are in flight."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import triton
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Config:
    """The form of one kernel."""

    rows: int
    """Query rows of a tile: tokens times query heads per KV head. At least 16, the least a tensor core takes."""
    tile: int
    """Keys a loop iteration takes."""
    warps: int
    stages: int


_PREFILL = {64: Config(128, 64, 4, 5), 128: Config(128, 64, 8, 5), 256: Config(128, 32, 8, 5)}
_DECODE = {64: Config(16, 64, 4, 5), 128: Config(16, 64, 4, 5), 256: Config(16, 32, 4, 5)}
_MANY_DECODES = {size: replace(config, stages=3) for size, config in _DECODE.items()}
_SMALL = {64: Config(64, 64, 4, 5), 128: Config(64, 64, 4, 5), 256: Config(64, 32, 8, 5)}
"""By head size, rounded up; for two-byte types. The small form is for prefills too short to fill the GPU with the large
one, and for all of a deterministic step, where the bits must be the same. Five stages are what it takes to load keys
and values of a tile while the one before is computed: their addresses are loaded too, a stage for each of theirs. With
three, a multiprocessor holds four programs of decodes instead of three, and these load for each other: measured on an
H200, 512 programs take a fifth less time so, 256 a tenth more."""
TABLES = {"prefill": _PREFILL, "decode": _DECODE, "many_decodes": _MANY_DECODES, "small": _SMALL}

_WIDE = Config(16, 16, 4, 2)
"""Of heads that are wider than that."""
_WIDEST_PADDED = 128
"""The widest heads that take one tile of a power of two; wider ones take two tiles where that wastes less."""
_WIDEST_TOGETHER = 256
_WIDE_ROWS = 16
"""Query rows of a program whose heads are wider than ``_WIDEST_TOGETHER``."""


@cache
def config_of(
    head_dim: int, group: int, element_size: int, shared_memory: int, form: str, v_dim: int | None = None
) -> Config:
    """The form of a kernel: ``prefill``, ``decode``, ``many_decodes`` or ``small``.

    ``group``: query heads per KV head; ``shared_memory``: bytes a program may have, to which the loads in flight are
    trimmed; ``v_dim``: dimensions of values that are loaded, those of keys by default.
    """
    padded = sum(_tiles(head_dim))
    loaded = _padded(head_dim if v_dim is None else v_dim) if v_dim != 0 else 0
    group //= head_splits(head_dim, group)
    table = TABLES[form]
    config = table[min(size for size in table if size >= padded)] if padded <= max(table) else _WIDE
    if element_size > 2:
        config = replace(config, tile=max(16, config.tile // 2), rows=max(16, config.rows // 2))
    rows = max(config.rows, triton.next_power_of_2(group))
    tile_bytes = config.tile * (padded + loaded) * element_size
    spare = shared_memory - rows * padded * element_size - 1024
    # What a compiler keeps of a tile's keys and values, at most: one more for every two stages.
    stages = next(
        count for count in range(config.stages, 0, -1) if count == 1 or (count + 1) // 2 * tile_bytes <= spare
    )
    return replace(config, rows=rows, stages=stages)


def head_splits(head_dim: int, group: int) -> int:
    """Among how many programs the query heads that share a key head are divided: more than one where their outputs
    are too wide for the registers of one."""
    if head_dim <= _WIDEST_TOGETHER:
        return 1
    return next(parts for parts in range(1, group + 1) if group % parts == 0 and group // parts <= _WIDE_ROWS)


@dataclass(frozen=True, slots=True)
class Widths:
    """Dimensions of keys and values as tiles have them."""

    padded: int
    """Of the first dimensions of keys, a power of two; all of them where ``rest`` is 0."""
    rest: int
    """Of the others, a power of two: two tiles of 512 and 64 instead of one of 1024."""
    v_dim: int
    v_padded: int
    shared: bool
    """Values are the first ``padded`` dimensions of keys, and are not loaded again."""

    @property
    def v_loaded(self) -> int:
        """Dimensions of values that are loaded."""
        return 0 if self.shared else self.v_dim


def widths_of(k_cache: Tensor, v_cache: Tensor) -> Widths:
    """Of caches of one layer."""
    head_dim, v_dim = k_cache.shape[3], v_cache.shape[3]
    padded, rest = _tiles(head_dim)
    part_of_keys = k_cache.data_ptr() == v_cache.data_ptr() and k_cache.stride() == v_cache.stride()
    return Widths(padded, rest, v_dim, _padded(v_dim), part_of_keys and v_dim == padded < head_dim)


def _tiles(head_dim: int) -> tuple[int, int]:
    """Dimensions of the tile of keys, and of the tile of those that are left over."""
    padded = _padded(head_dim)
    if head_dim <= _WIDEST_PADDED or padded == head_dim:
        return padded, 0
    return padded // 2, _padded(head_dim - padded // 2)


def _padded(head_dim: int) -> int:
    """What a tile takes: a power of two, at least 16."""
    return max(16, int(triton.next_power_of_2(head_dim)))
