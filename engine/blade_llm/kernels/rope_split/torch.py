"""The split and rotation in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def rope_split(
    qkv: Tensor, angles: tuple[Tensor, Tensor] | None, queries: Tensor, keys: Tensor, values: Tensor
) -> None:
    rows, num_heads, head_dim = queries.shape
    split = qkv.view(rows, 3, num_heads, head_dim)
    if angles is not None:
        _rotate(split[:, :2], *angles)
    queries.copy_(split[:, 0])
    keys.copy_(split[:, 1].transpose(0, 1))
    values.copy_(split[:, 2].transpose(0, 1))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """In place. ``x``: [rows, ..., head_dim]; ``cos``, ``sin``: [rows, head_dim / 2] fp32."""
    shape = (len(x), *[1] * (x.dim() - 2), cos.shape[1])
    cos, sin = cos.view(shape), sin.view(shape)
    first, second = x.float().chunk(2, dim=-1)
    x.copy_(torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1))
