"""Rotary embedding and KV write in plain torch; queries and keys are rotated together."""

import torch
from torch import Tensor

from blade_llm.kernels.kv_rows import QuantizedRows


def rope_write_kv(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    slot_mapping: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    num_heads: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
    unit_offset: bool = False,
    rows: QuantizedRows | None = None,
) -> Tensor:
    _, _, kv_heads, width = k_cache.shape
    head_dim = width if rows is None else rows.head_dim
    heads = qkv.view(-1, num_heads + 2 * kv_heads, head_dim)
    turned = heads[:, : num_heads + kv_heads]
    if q_norm is not None and k_norm is not None:
        weights = torch.cat((q_norm.expand(num_heads, -1), k_norm.expand(kv_heads, -1)))
        wide = turned.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        turned = (wide * (1.0 + weights.float())).to(qkv.dtype) if unit_offset else wide.to(qkv.dtype) * weights
    first, second = turned.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(qkv.dtype)
    keys, values = rotated[:, num_heads:], heads[:, num_heads + kv_heads :]
    if rows is not None:
        keys, values = rows.quantize(keys), rows.values.quantize(values)
    for cache, new in ((k_cache, keys), (v_cache, values)):
        cache.view(-1, *cache.shape[2:]).index_copy_(0, slot_mapping, new)
    return rotated[:, :num_heads]
