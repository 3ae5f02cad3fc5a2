"""The paged KV cache's memory."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from blade_llm.kernels.kv_rows import QuantizedRows
from blade_llm.kernels.native.memory import HugePageArena, give_back
from blade_llm.layers.step import KVCache
from blade_llm.models.config import KVSpec

_COPIED_AT_ONCE: Final = 32
"""Blocks, so that a step with many copies needs little memory for them."""


def allocate_kv_cache(
    spec: KVSpec, num_blocks: int, block_size: int, device: torch.device, dtype: torch.dtype
) -> KVCache:
    """For each layer keys and values, [num_blocks + 1, block_size, kv_heads, head_dim], all zero. Values that are part
    of the keys are a view of them. Quantised ones are uint8, with a row's bytes in place of ``head_dim``
    (:mod:`blade_llm.kv_quant`), that of keys and that of values.

    The block after the last is never given out: what pads a batch to the size of a CUDA graph is written there.
    Attention reads whole blocks and masks what is not filled yet, so every slot must be finite from the start. On CPU
    the zeros come from the system's untouched pages, huge ones where it has them: memory is used only once blocks are.
    """
    if not spec.num_layers:
        return []
    slots = num_blocks + 1, block_size, spec.num_heads
    width = spec.head_dim
    if spec.quant is not None:
        dtype = torch.uint8
        width, of_values = (each.row_bytes(spec.head_dim) for each in (spec.quant, spec.quant.values))
        if of_values != width:
            both = (_zeros((spec.num_layers, *slots, each), device, dtype) for each in (width, of_values))
            return list(zip(*both, strict=True))
    cache = _zeros((spec.num_layers, spec.tensors, *slots, width), device, dtype)
    if spec.value_part:
        return [(keys, keys[..., : spec.value_part]) for (keys,) in cache]
    return [(keys, values) for keys, values in cache]


def rows_of(spec: KVSpec, dtype: torch.dtype) -> QuantizedRows | None:
    """How rows of the cache are packed, for activations of ``dtype``; None: they are not quantised."""
    return None if spec.quant is None else QuantizedRows(spec.quant, spec.head_dim, dtype)


def copy_blocks(cache: KVCache, sources: Tensor, targets: Tensor, states: Tensor | None = None) -> None:
    """Copy keys and values of all layers from blocks ``sources`` to ``targets``, [copies] int64 each, and ``states``.

    ``cache``: from :func:`allocate_kv_cache`, whose layers lie one after another; ``states``: from
    :func:`allocate_states`. No target may be a source of a later copy.
    """
    if states is not None:
        blocks = states.view(len(cache[0][0]), -1, states.shape[1])
        blocks.index_copy_(0, targets, blocks.index_select(0, sources))
    for whole in _whole(cache):
        for begin in range(0, len(sources), _COPIED_AT_ONCE):
            some = slice(begin, begin + _COPIED_AT_ONCE)
            whole.index_copy_(1, targets[some], whole.index_select(1, sources[some]))


def allocate_states(hidden: int, num_blocks: int, block_size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Hidden states of the tokens in as many blocks, [(num_blocks + 1) * block_size, hidden], all zero."""
    return _zeros(((num_blocks + 1) * block_size, hidden), device, dtype)


def copy_tokens(cache: KVCache, sources: Tensor, targets: Tensor) -> None:
    """Copy keys and values of single tokens, all layers' at once; ``block * block_size + offset``, [copies] int64 each.

    What is both a source and a target is read before it is written.
    """
    for blocks in _whole(cache):
        whole = blocks.view(len(blocks), -1, *blocks.shape[3:])
        whole.index_copy_(1, targets, whole.index_select(1, sources))


def give_back_kv_cache(cache: KVCache, states: Tensor | None = None) -> None:
    """Give the memory of a cache and of hidden states on CPU back to the system, which it is taken from again as blocks
    are written. All is zero then."""
    for whole in _whole(cache):
        give_back(whole)
    if states is not None:
        give_back(states)


def _zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """On CPU of untouched pages, see :func:`allocate_kv_cache`."""
    if device.type == "cpu":
        return HugePageArena().empty(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
    return torch.zeros(shape, dtype=dtype, device=device)


def _whole(cache: KVCache) -> list[Tensor]:
    """The memory of a cache from :func:`allocate_kv_cache`, [tensors, blocks, block_size, kv_heads, width] each: all of
    it, or, where their rows differ in width, that of keys and that of values."""
    if not cache:
        return []
    layers, (keys, values) = len(cache), cache[0]
    if keys.data_ptr() == values.data_ptr():
        return [_layers(keys, layers)]
    if keys.shape == values.shape:
        return [_layers(keys, 2 * layers)]
    return [_layers(keys, layers), _layers(values, layers)]


def _layers(first: Tensor, count: int) -> Tensor:
    """``count`` tensors that lie one after another, from the first on."""
    return first.as_strided((count, *first.shape), (first.numel(), *first.stride()))
