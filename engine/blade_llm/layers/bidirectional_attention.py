"""Self-attention over whole sequences, without a KV cache: of encoders."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from blade_llm.layers.linear import Linear
from blade_llm.layers.step import StepMetadata, WholeSequences
from blade_llm.spec.attention import AttentionSpec


class BidirectionalAttention:
    """Multi-head attention of one layer in which each token sees its whole sequence (Vaswani et al., arXiv
    1706.03762).

    One sequence after another, so that none depends on the others of its batch.
    """

    __slots__ = ("output", "qkv", "spec")

    def __init__(self, spec: AttentionSpec, qkv: Linear, output: Linear) -> None:
        """``qkv``: queries, keys and values stacked in this order."""
        assert (spec.rope, spec.head_norm, spec.window) == (None, None, 0), "not of encoders"
        assert spec.num_heads == spec.num_kv_heads, "each head of an encoder has its own keys"
        self.spec = spec
        self.qkv = qkv
        self.output = output

    def __call__(self, x: Tensor, step: StepMetadata) -> Tensor:
        """[tokens, hidden] to the same."""
        spec = self.spec
        assert isinstance(step.attention, WholeSequences)
        qkv = self.qkv(x, step).view(len(x), 3, spec.num_heads, spec.head_dim)
        out = x.new_empty(len(x), spec.num_heads, spec.head_dim)
        begin = 0
        for length in step.attention.lengths:
            some = slice(begin, begin + length)
            q, k, v = qkv[some].permute(1, 2, 0, 3).unsqueeze(1).unbind()  # [1, heads, length, head_dim] each
            attended = F.scaled_dot_product_attention(q, k, v, scale=spec.scale)
            out[some] = attended.squeeze(0).transpose(0, 1)
            begin += length
        return self.output(out.view(len(x), spec.query_size), step)
