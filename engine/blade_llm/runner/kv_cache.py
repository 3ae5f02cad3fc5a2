"""The paged KV cache's memory."""

from __future__ import annotations

import contextlib
import math
import mmap

import torch
from torch import Tensor

from blade_llm.layers.step import KVCache
from blade_llm.models.config import ModelConfig


def allocate_kv_cache(
    config: ModelConfig, num_blocks: int, block_size: int, device: torch.device, dtype: torch.dtype
) -> KVCache:
    """For each layer keys and values, [num_blocks + 1, block_size, kv_heads, head_dim], all zero.

    The block after the last is never given out: what pads a batch to the size of a CUDA graph is written there.
    Attention reads whole blocks and masks what is not filled yet, so every slot must be finite from the start. On CPU
    the zeros come from the system's untouched pages: memory is used only once blocks are.
    """
    shape = (config.num_layers, 2, num_blocks + 1, block_size, config.num_kv_heads, config.head_dim)
    if device.type == "cpu":
        cache = _untouched_pages(math.prod(shape), dtype).view(shape)
    else:
        cache = torch.zeros(shape, dtype=dtype, device=device)
    return [(layer[0], layer[1]) for layer in cache]


def _untouched_pages(count: int, dtype: torch.dtype) -> Tensor:
    """``count`` zeros; huge pages where the system has them, so that reading a long context walks fewer page tables."""
    pages = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):  # a kernel without transparent huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype)
