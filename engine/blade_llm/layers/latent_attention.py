"""Multi-head latent attention: projections to latent vectors, rotation and cache write, paged attention over the latent
vectors themselves, output projection."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from blade_llm.kernels.linear.torch import CPU_ROWS, GPU_ROWS
from blade_llm.kernels.paged_attention import PreparedAttention, paged_attention
from blade_llm.kernels.rms_norm import rms_norm
from blade_llm.kernels.rope_write_latent import rope_write_latent
from blade_llm.layers.latent_prefill import ExpandedPrefills, attend_expanded
from blade_llm.layers.linear import Linear
from blade_llm.layers.step import Rotation, StepMetadata
from blade_llm.spec.latent_attention import LatentAttentionSpec


def key_matrices(spec: LatentAttentionSpec, kv_up: Tensor) -> Tensor:
    """[heads, nope_dim, latent_dim] of [heads * (nope_dim + value_dim), latent_dim]."""
    return _by_heads(spec, kv_up)[:, : spec.nope_dim].contiguous()


def value_matrices(spec: LatentAttentionSpec, kv_up: Tensor) -> Tensor:
    """[heads, latent_dim, value_dim] of the same."""
    return _by_heads(spec, kv_up)[:, spec.nope_dim :].transpose(1, 2).contiguous()


def _by_heads(spec: LatentAttentionSpec, kv_up: Tensor) -> Tensor:
    return kv_up.view(spec.num_heads, spec.nope_dim + spec.value_dim, spec.latent_dim)


class LatentAttention:
    """MLA of one layer over the paged cache of latent vectors, in its absorbed form (DeepSeek-V2, arXiv 2405.04434,
    2.1): the scores of a head are ``q . (K c) = (K^T q) . c`` for the latent vector ``c`` of each token, and the sum of
    values ``V c`` is ``V`` times the sum of latent vectors. :mod:`~blade_llm.layers.latent_prefill` has the other."""

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
        key_up: Tensor,
        value_up: Tensor,
        output: Linear,
        deterministic: bool,
    ) -> None:
        """``layer``: index into the KV cache; ``down``: to queries or their latent vector, latent vector, shared key;
        ``query``: norm and projection of queries' latent vectors; ``key_up``: [heads, nope_dim, latent_dim];
        ``value_up``: [heads, latent_dim, value_dim]; ``deterministic``: a token's result does not depend on the other
        tokens."""
        self.layer = layer
        self.spec = spec
        self.down = down
        self.query_norm: Tensor | None = None
        self.query_up: Linear | None = None
        if query is not None:
            self.query_norm, self.query_up = query
        self.latent_norm = latent_norm
        self.key_up = key_up
        """Multiplied into queries."""
        self.value_up = value_up
        """Multiplied into results."""
        self.output = output
        self.deterministic = deterministic
        linears = [down, output, *([] if query is None else [query[1]])]
        self.nbytes = key_up.nbytes + value_up.nbytes + sum(linear.nbytes for linear in linears)

    def __call__(self, x: Tensor, rotation: Rotation, step: StepMetadata, selected: Tensor | None = None) -> Tensor:
        """[tokens, hidden] to the same, or to [selected, hidden]: of those tokens alone ([selected] int64)."""
        spec = self.spec
        cache, _ = step.kv_cache[self.layer]
        whole = self.down(x, step)
        first, compressed = whole[:, : -spec.head_dim], whole[:, -spec.head_dim :]
        if self.query_norm is not None and self.query_up is not None:
            first = self.query_up(rms_norm(first.contiguous(), self.query_norm, spec.latent_norm.eps), step)
        width = spec.nope_dim + spec.rope_dim
        # Not a view: that of a single token would have other strides, for which Triton compiles anew.
        queries = first.as_strided((len(x), spec.num_heads, width), (first.stride(0), width, 1))
        over_latents = queries.new_empty(len(x), spec.num_heads, spec.head_dim)
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
        if step.expanded is not None:
            result = self._expanded(step.expanded, queries, over_latents, step)
            if selected is not None:
                result = result.index_select(0, selected)
            return self.output(result.flatten(1), step if selected is None else step.of_selected())
        attended = self._over_latents(queries, over_latents, step.attention, step)
        if selected is not None:
            attended = attended.index_select(0, selected)
            step = step.of_selected()
        return self.output(self._values(attended).flatten(1), step)

    def _over_latents(
        self, queries: Tensor, over_latents: Tensor, attention: PreparedAttention, step: StepMetadata
    ) -> Tensor:
        """Sums of latent vectors, [tokens, heads, latent_dim]. ``over_latents``: its rotated part is there already."""
        spec = self.spec
        self._by_head(queries[..., : spec.nope_dim], self.key_up, over_latents[..., : spec.latent_dim])
        attended = paged_attention(over_latents, *step.kv_cache[self.layer], attention, spec.scale)
        return attended.view(len(queries), spec.num_heads, spec.latent_dim)

    def _values(self, attended: Tensor) -> Tensor:
        """[tokens, heads, latent_dim] to [tokens, heads, value_dim]."""
        result = attended.new_empty(len(attended), self.spec.num_heads, self.spec.value_dim)
        self._by_head(attended, self.value_up, result)
        return result

    def _expanded(
        self, expanded: ExpandedPrefills, queries: Tensor, over_latents: Tensor, step: StepMetadata
    ) -> Tensor:
        """[tokens, heads, value_dim] of a step with prefills in the expanded form."""
        spec, (cache, _) = self.spec, step.kv_cache[self.layer]
        result = queries.new_empty(len(queries), spec.num_heads, spec.value_dim)
        for prefill in expanded.sequences:
            some = prefill.tokens
            turned = torch.cat((queries[some, :, : spec.nope_dim], over_latents[some, :, spec.latent_dim :]), dim=2)
            result[some] = attend_expanded(spec, prefill, turned, cache, self.key_up, self.value_up)
        if expanded.attention is not None:
            others = expanded.others
            few = queries.index_select(0, others), over_latents.index_select(0, others)
            result[others] = self._values(self._over_latents(*few, expanded.attention, step))
        return result

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
