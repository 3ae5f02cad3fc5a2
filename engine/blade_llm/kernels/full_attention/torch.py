"""Attention without a KV cache in plain torch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def full_attention(queries: Tensor, keys: Tensor, values: Tensor, sequences: int) -> None:
    num_heads, head_dim = queries.shape[1:]
    q = queries.view(sequences, -1, num_heads, head_dim).transpose(1, 2)
    k, v = (each.view(num_heads, sequences, -1, head_dim).transpose(0, 1) for each in (keys, values))
    out = F.scaled_dot_product_attention(q, k, v)  # [sequences, heads, rows, head_dim]
    queries.copy_(out.transpose(1, 2).reshape(queries.shape))
