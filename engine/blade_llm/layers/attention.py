"""Self-attention: fused projection, rotation and cache write, paged attention, output projection."""

from __future__ import annotations

import torch
from torch import Tensor

from blade_llm.kernels.paged_attention import PLAIN, AttentionVariant, paged_attention
from blade_llm.kernels.rope_write_kv import rope_write_kv
from blade_llm.layers.linear import Linear
from blade_llm.layers.step import Rotation, StepMetadata
from blade_llm.layers.whole_norm import normalise_whole_heads
from blade_llm.parallel.group import RankGroup
from blade_llm.spec.attention import AttentionSpec


def variant_of(softcap: float, alibi_slopes: tuple[float, ...], device: torch.device) -> AttentionVariant:
    """The options that the operator takes for these of a spec."""
    if not softcap and not alibi_slopes:
        return PLAIN
    slopes = torch.tensor(alibi_slopes, dtype=torch.float32, device=device) if alibi_slopes else None
    return AttentionVariant(softcap=softcap, slopes=slopes)


class Attention:
    """Grouped-query attention of one layer over the paged KV cache."""

    __slots__ = ("group", "k_norm", "layer", "norm_eps", "norm_offset", "output", "q_norm", "qkv", "spec", "variant")

    def __init__(
        self,
        layer: int,
        spec: AttentionSpec,
        qkv: Linear,
        output: Linear,
        head_norms: tuple[Tensor, Tensor] | None,
        device: torch.device,
        group: RankGroup | None = None,
    ) -> None:
        """``qkv``: queries, keys and values stacked in this order; ``layer``: index into the KV cache; ``head_norms``:
        of queries and keys, [head_dim] each, or as wide as all heads where these are normalised together; ``group``:
        the ranks that each have some of the heads."""
        self.layer = layer
        self.spec = spec
        self.qkv = qkv
        self.output = output
        self.q_norm: Tensor | None = None
        self.k_norm: Tensor | None = None
        if head_norms is not None:
            self.q_norm, self.k_norm = head_norms
        self.norm_eps = 0.0 if spec.head_norm is None else spec.head_norm.eps
        self.norm_offset = spec.head_norm is not None and spec.head_norm.kind == "rms_unit_offset"
        self.group = group
        self.variant = variant_of(spec.softcap, spec.alibi_slopes, device)

    @property
    def nbytes(self) -> int:
        """Of both linear layers."""
        return self.qkv.nbytes + self.output.nbytes

    def __call__(self, x: Tensor, rotation: Rotation, step: StepMetadata, selected: Tensor | None = None) -> Tensor:
        """[tokens, hidden] to the same, or to [selected, hidden]: of those tokens alone ([selected] int64)."""
        spec, qkv = self.spec, self.qkv(x, step)
        q_norm, k_norm = self.q_norm, self.k_norm
        if self.group is not None and spec.head_norm_whole and q_norm is not None and k_norm is not None:
            qkv = normalise_whole_heads(qkv, q_norm, k_norm, self.norm_eps, self.group)
            q_norm = k_norm = None
        k_cache, v_cache = step.kv_cache[self.layer]
        q = rope_write_kv(
            qkv,
            rotation.cos,
            rotation.sin,
            step.slot_mapping,
            k_cache,
            v_cache,
            spec.num_heads,
            q_norm,
            k_norm,
            self.norm_eps,
            unit_offset=self.norm_offset,
            rows=step.kv_rows,
        )
        attended = paged_attention(q, k_cache, v_cache, step.attention, spec.scale, spec.window, self.variant)
        if selected is None:
            return self.output(attended, step)
        return self.output(attended.index_select(0, selected), step.of_selected())
