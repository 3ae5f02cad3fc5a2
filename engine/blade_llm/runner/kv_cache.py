"""The paged KV cache's memory."""

from __future__ import annotations

import math

import torch

from blade_llm.kernels.native.memory import HugePageArena
from blade_llm.layers.step import KVCache
from blade_llm.models.config import ModelConfig


def allocate_kv_cache(
    config: ModelConfig, num_blocks: int, block_size: int, device: torch.device, dtype: torch.dtype
) -> KVCache:
    """For each layer keys and values, [num_blocks + 1, block_size, kv_heads, head_dim], all zero.

    The block after the last is never given out: what pads a batch to the size of a CUDA graph is written there.
    Attention reads whole blocks and masks what is not filled yet, so every slot must be finite from the start. On CPU
    the zeros come from the system's untouched pages, huge ones where it has them: memory is used only once blocks are.
    """
    shape = (config.num_layers, 2, num_blocks + 1, block_size, config.num_kv_heads, config.head_dim)
    if device.type == "cpu":
        cache = HugePageArena().empty(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
    else:
        cache = torch.zeros(shape, dtype=dtype, device=device)
    return [(layer[0], layer[1]) for layer in cache]
