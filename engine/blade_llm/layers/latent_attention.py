"""Multi-head latent attention: projections to latent vectors, rotation and cache write, paged attention over the latent
vectors themselves, output projection."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from blade_llm.kernels.linear.torch import CPU_ROWS, GPU_ROWS
from blade_llm.kernels.paged_attention import paged_attention
from blade_llm.kernels.rms_norm import rms_norm
from blade_llm.kernels.rope_write_latent import rope_write_latent
from blade_llm.layers.linear import Linear
from blade_llm.layers.step import Rotation, StepMetadata
from blade_llm.spec.latent_attention import LatentAttentionSpec


class LatentAttention:
    """MLA of one layer over the paged cache of latent vectors, in its absorbed form (DeepSeek-V2, arXiv 2405.04434,
    2.1): the scores of a head are ``q . (K c) = (K^T q) . c`` for the latent vector ``c`` of each token, and the sum of
    values ``V c`` is ``V`` times the sum of latent vectors."""

    __slots__ = (
        "deterministic",
        "down",
        "key_up",
        "latent_norm",
        "layer",
        "nbytes",
        "output",
        "query_norm",
        "query_up",
        "spec",
        "value_up",
    )

    def __init__(
        self,
        layer: int,
        spec: LatentAttentionSpec,
        down: Linear,
        query: tuple[Tensor, Linear] | None,
        latent_norm: Tensor,
        kv_up: Tensor,
        output: Linear,
        deterministic: bool,
    ) -> None:
        """``layer``: index into the KV cache; ``down``: to queries or their latent vector, latent vector, shared key;
        ``query``: norm and projection of queries' latent vectors; ``kv_up``: [heads * (nope_dim + value_dim),
        latent_dim]; ``deterministic``: a token's result does not depend on the other tokens."""
        self.layer = layer
        self.spec = spec
        self.down = down
        self.query_norm, self.query_up = query or (None, None)
        self.latent_norm = latent_norm
        matrices = kv_up.view(spec.num_heads, spec.nope_dim + spec.value_dim, spec.latent_dim)
        self.key_up = matrices[:, : spec.nope_dim]
        """[heads, nope_dim, latent_dim], multiplied into queries."""
        self.value_up = matrices[:, spec.nope_dim :].transpose(1, 2)
        """[heads, latent_dim, value_dim], multiplied into results."""
        self.output = output
        self.deterministic = deterministic
        linears = [down, output, *([] if query is None else [query[1]])]
        self.nbytes = kv_up.nbytes + sum(linear.nbytes for linear in linears)

    def __call__(self, x: Tensor, rotation: Rotation, step: StepMetadata, selected: Tensor | None = None) -> Tensor:
        """[tokens, hidden] to the same, or to [selected, hidden]: of those tokens alone ([selected] int64)."""
        spec = self.spec
        cache, values = step.kv_cache[self.layer]
        first, compressed = self.down(x, step).split((spec.down_size - spec.head_dim, spec.head_dim), dim=1)
        if self.query_norm is not None and self.query_up is not None:
            first = self.query_up(rms_norm(first.contiguous(), self.query_norm, spec.latent_norm.eps), step)
        queries = first.view(len(x), spec.num_heads, spec.nope_dim + spec.rope_dim)
        over_latents = queries.new_empty(len(x), spec.num_heads, spec.head_dim)
        self._by_head(queries[..., : spec.nope_dim], self.key_up, over_latents[..., : spec.latent_dim])
        rope_write_latent(
            queries,
            compressed,
            self.latent_norm,
            spec.latent_norm.eps,
            rotation.cos,
            rotation.sin,
            step.slot_mapping,
            cache,
            over_latents,
            neighbours=spec.rope.pairing == "neighbours",
        )
        attended = paged_attention(over_latents, cache, values, step.attention, spec.scale)
        if selected is not None:
            attended = attended.index_select(0, selected)
        attended = attended.unflatten(1, (spec.num_heads, spec.latent_dim))
        result = attended.new_empty(len(attended), spec.num_heads, spec.value_dim)
        self._by_head(attended, self.value_up, result)
        return self.output(result.flatten(1), step)

    def _by_head(self, x: Tensor, matrices: Tensor, out: Tensor) -> None:
        """``out[:, h] = x[:, h] @ matrices[h]``. [tokens, heads, in], [heads, in, out], [tokens, heads, out]."""
        if not self.deterministic:
            torch.bmm(x.transpose(0, 1), matrices, out=out.transpose(0, 1))
            return
        rows = GPU_ROWS if x.is_cuda else CPU_ROWS  # always as many at a time: libraries choose by it how they sum
        for begin in range(0, len(x), rows):
            some = x[begin : begin + rows]
            padded = F.pad(some, (0, 0, 0, 0, 0, rows - len(some))).transpose(0, 1).contiguous()
            out[begin : begin + rows] = torch.bmm(padded, matrices).transpose(0, 1)[: len(some)]
