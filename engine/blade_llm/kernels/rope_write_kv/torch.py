"""Rotary embedding and KV write in plain torch; queries and keys are rotated together."""

import torch
from torch import Tensor


def rope_write_kv(
    qkv: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, k_cache: Tensor, v_cache: Tensor, num_heads: int
) -> Tensor:
    _, _, kv_heads, head_dim = k_cache.shape
    heads = qkv.view(-1, num_heads + 2 * kv_heads, head_dim)
    first, second = heads[:, : num_heads + kv_heads].chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(qkv.dtype)
    k_cache.view(-1, kv_heads, head_dim).index_copy_(0, slots, rotated[:, num_heads:])
    v_cache.view(-1, kv_heads, head_dim).index_copy_(0, slots, heads[:, num_heads + kv_heads :])
    return rotated[:, :num_heads]
