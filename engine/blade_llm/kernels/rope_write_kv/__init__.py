"""Rotary embedding (Su et al., arXiv 2104.09864) and the write of keys and values into the paged cache, in one pass
over the fused projection: both are small, both touch the same data."""

from torch import Tensor

from blade_llm.kernels.rope_write_kv import torch as _torch


def rope_write_kv(
    qkv: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, k_cache: Tensor, v_cache: Tensor, num_heads: int
) -> Tensor:
    """Rotate queries and keys by their positions' angles, store keys and values, return the queries.

    ``qkv``: [tokens, (num_heads + 2 * kv_heads) * head_dim]. ``cos``, ``sin``: [tokens, head_dim / 2] fp32; halves are
    rotated against each other (``i`` with ``i + head_dim / 2``), as in Hugging Face checkpoints. ``slots``: [tokens]
    int64, ``block * block_size + offset``. ``k_cache``, ``v_cache``: [blocks, block_size, kv_heads, head_dim],
    contiguous, written in place. Returns [tokens, num_heads, head_dim].
    """
    return _torch.rope_write_kv(qkv, cos, sin, slots, k_cache, v_cache, num_heads)
