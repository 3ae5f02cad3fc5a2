"""What the operator multiplies with on a GPU, where all of it has to be device memory at fixed addresses: the host
neither knows nor says which adapter a token has, so that one CUDA graph serves every mixture."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class DeviceTable:
    """One layer's matrices in all buffers of adapters. Buffer 0 is none: its tokens are left alone."""

    weights: Tensor
    """[buffers - 1, elements], shared by all layers: all matrices of the adapter in buffer ``index + 1``. A of a layer
    is [ranks of all parts, padded inputs], B of a part [rank, padded outputs]."""
    entries: Tensor
    """[buffers, numbers] int32: what this layer has in each, as :mod:`blade_llm.spec.adapter_layout` says."""
    parts: Tensor
    """[parts, 3] int32: first output, outputs (both in steps of ``step``), and units of a row of B."""
    step: int
    """What divides all numbers of outputs."""
    inputs: int
    outputs: tuple[int, ...]
    """Of each part."""
    max_rank: int
    """Of a part."""
    deterministic: bool = False
    """A token's result does not depend on the others: products have one form, whatever their number."""


@dataclass(frozen=True, slots=True)
class TokenGroups:
    """The tokens of a step by adapter, found on the device."""

    order: Tensor
    """[tokens] int32: tokens without adapter, then those of buffer 1, 2, …"""
    tiles: Tensor
    """[tiles, 8] int32: buffer (0: no tile), the places in ``order`` where the tile begins and ends, how many tiles
    there are, and into how many parts inputs are cut."""
    work: Tensor
    """[programs, 8] int32: buffer, begin and end of the tile of each program of shrink, which part of the inputs it
    multiplies, and of how many."""
    most_splits: int
    """Parts at most."""
