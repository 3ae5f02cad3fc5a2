"""Scores, softmax and weighted sum in plain torch: torch's own operator where it knows all options, else written
out."""

from __future__ import annotations

from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from blade_llm.kernels.paged_attention.variant import AttentionVariant

Position = TypeVar("Position", int, Tensor)


def first_key(position: Position, window: int, chunk: int) -> Position:
    """The first position that a query at ``position`` sees."""
    first = position * 0
    if window:
        first = _at_least(first, position + 1 - window)
    return _at_least(first, position // chunk * chunk) if chunk else first


def _at_least(least: Position, value: Position) -> Position:
    return torch.maximum(least, value) if isinstance(least, Tensor) else max(least, value)


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scale: float,
    variant: AttentionVariant,
    distances: Tensor | None,
    heads_last: bool = False,
) -> Tensor:
    """Attention of ``q`` ([..., queries, head_dim]) to ``keys`` ([..., length, head_dim]) and ``values``.

    ``mask``: additive. ``distances``: key positions minus query positions, where the variant has slopes. The two
    dimensions of heads are [heads that share a key head, key heads] with the queries after them, or, ``heads_last``,
    the key heads second and the heads that share one in place of the queries.
    """
    if not variant.softcap and variant.slopes is None and variant.sinks is None:
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=scale)

    def of_heads(terms: Tensor) -> Tensor:
        if heads_last:
            return terms.view(1, q.shape[1], q.shape[2], 1)
        return terms.view(q.shape[1], q.shape[0]).T[:, :, None, None]

    scores = q.float() @ keys.float().transpose(2, 3) * scale
    if variant.softcap:
        scores = variant.softcap * torch.tanh(scores / variant.softcap)
    if variant.slopes is not None:
        assert distances is not None
        scores = scores + of_heads(variant.slopes) * distances
    if mask is not None:
        scores = scores + mask.float()
    if variant.sinks is not None:
        scores = torch.cat((scores, of_heads(variant.sinks).expand(*scores.shape[:3], 1)), dim=3)
    weights = scores.softmax(dim=3)[..., : keys.shape[2]]
    return weights.to(values.dtype) @ values
