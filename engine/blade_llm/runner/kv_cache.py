"""The paged KV cache's memory."""

from __future__ import annotations

import numpy as np
import torch

from blade_llm.layers.step import KVCache
from blade_llm.models.config import ModelConfig


def allocate_kv_cache(
    config: ModelConfig, num_blocks: int, block_size: int, device: torch.device, dtype: torch.dtype
) -> KVCache:
    """For each layer keys and values, [num_blocks, block_size, kv_heads, head_dim], all zero.

    Attention gathers whole blocks and masks what is not filled yet, so every slot must be finite from the start. On CPU
    the zeros come from the system's untouched pages: memory is used only once blocks are.
    """
    shape = (config.num_layers, 2, num_blocks, block_size, config.num_kv_heads, config.head_dim)
    if device.type == "cpu":
        storage = np.zeros(shape, dtype=np.float32 if dtype == torch.float32 else np.int16)
        cache = torch.from_numpy(storage).view(dtype)
    else:
        cache = torch.zeros(shape, dtype=dtype, device=device)
    return [(layer[0], layer[1]) for layer in cache]
