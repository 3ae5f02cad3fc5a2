"""Attention without a KV cache, in which every query sees all keys of its sequence: of encoders (Vaswani et al., arXiv
1706.03762)."""

from __future__ import annotations

from torch import Tensor

from blade_llm.kernels.backend import backend_of
from blade_llm.kernels.full_attention import torch as _reference


def full_attention(queries: Tensor, keys: Tensor, values: Tensor, sequences: int = 1) -> None:
    """Attention of queries, in whose place its result is written.

    ``queries``: [rows, heads, head_dim], heads beside each other, equally many rows of each of ``sequences``; ``keys``,
    ``values``: [heads, keys, head_dim], the rows of a head one after the other, equally many of each sequence, too.
    """
    if backend_of(queries) == "native":
        from blade_llm.kernels.full_attention import native

        native.full_attention(queries, keys, values, sequences)
    else:
        _reference.full_attention(queries, keys, values, sequences)
