"""Self-attention: fused projection, rotation and cache write, paged attention, output projection."""

from __future__ import annotations

from torch import Tensor

from blade_llm.kernels.paged_attention import paged_attention
from blade_llm.kernels.rope_write_kv import rope_write_kv
from blade_llm.layers.linear import Linear
from blade_llm.layers.step import Rotation, StepMetadata


class Attention:
    """Grouped-query attention of one layer over the paged KV cache."""

    __slots__ = ("layer", "num_heads", "output", "qkv", "scale")

    def __init__(self, layer: int, qkv: Linear, output: Linear, num_heads: int, head_dim: int) -> None:
        """``qkv``: queries, keys and values stacked in this order; ``layer``: index into the KV cache."""
        self.layer = layer
        self.qkv = qkv
        self.output = output
        self.num_heads = num_heads
        self.scale = head_dim**-0.5

    def __call__(self, x: Tensor, rotation: Rotation, step: StepMetadata, selected: Tensor | None = None) -> Tensor:
        """[tokens, hidden] to the same, or to [selected, hidden]: of those tokens alone ([selected] int64)."""
        k_cache, v_cache = step.kv_cache[self.layer]
        q = rope_write_kv(self.qkv(x), rotation.cos, rotation.sin, step.slot_mapping, k_cache, v_cache, self.num_heads)
        attended = paged_attention(q, k_cache, v_cache, step.attention, self.scale)
        return self.output(attended if selected is None else attended.index_select(0, selected))
