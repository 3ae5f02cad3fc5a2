"""A layer of a vision tower, for some rows at a time, and its mergers."""

from __future__ import annotations

import torch
from torch import Tensor

from blade_llm.kernels.full_attention import full_attention
from blade_llm.kernels.rope_split import rope_split
from blade_llm.layers.linear import Linear
from blade_llm.layers.mlp import MLP
from blade_llm.models.decoder_layer import build_norm
from blade_llm.models.linear_method import LinearMethod
from blade_llm.models.parameters import Parameters
from blade_llm.models.vision.geometry import Spans
from blade_llm.spec.mlp import MLPSpec
from blade_llm.spec.vision.tower import MergerSpec, VisionSpec


class TowerLayer:
    """``x = x + attention(norm(x))``, then ``x = x + mlp(norm(x))``."""

    def __init__(self, index: int, spec: VisionSpec, parameters: Parameters, method: LinearMethod) -> None:
        place = f"layers.{index}"

        def linear(name: str) -> Linear:
            return method.create(parameters, parameters.linear(f"{place}.{name}"))

        self.attention_norm = build_norm(spec.norm, parameters, f"{place}.attention_norm")
        self.qkv, self.output = linear("attention.qkv"), linear("attention.output")
        self.mlp_norm = build_norm(spec.norm, parameters, f"{place}.mlp_norm")
        self.mlp = MLP(spec.mlp, linear("mlp.up"), linear("mlp.down"))
        self.attention_scale = parameters.tensor(f"{place}.attention_scale") if spec.layer_scale else None
        self.mlp_scale = parameters.tensor(f"{place}.mlp_scale") if spec.layer_scale else None
        tensors = [self.attention_scale, self.mlp_scale]
        tensors += [tensor for norm in (self.attention_norm, self.mlp_norm) for tensor in (norm.weight, norm.bias)]
        self.nbytes = sum(tensor.nbytes for tensor in tensors if tensor is not None)
        self.nbytes += sum(each.nbytes for each in (self.qkv, self.output, self.mlp.up, self.mlp.down))

    def project(
        self, x: Tensor, angles: tuple[Tensor, Tensor] | None, queries: Tensor, keys: Tensor, values: Tensor
    ) -> None:
        """Write queries ([rows, heads, head_dim]), keys and values ([heads, rows, head_dim]) of some rows.

        ``x``: [rows, width]; ``angles``: cosines and sines, [rows, head_dim / 2] fp32 each.
        """
        rope_split(self.qkv(self.attention_norm(x)), angles, queries, keys, values)

    def finish(self, x: Tensor, attended: Tensor) -> None:
        """What comes after attention. ``x``: [rows, width], in place; ``attended``: [rows, heads, head_dim]."""
        added = self.output(attended.view(x.shape))
        if self.attention_scale is not None:
            added *= self.attention_scale
        normed, total = self.mlp_norm.add(added, x)
        added = self.mlp(normed, None)
        if self.mlp_scale is not None:
            added *= self.mlp_scale
        torch.add(total, added, out=x)


def attend(queries: Tensor, keys: Tensor, values: Tensor, spans: Spans, first: int) -> None:
    """Attention of some rows and heads; what it makes takes the place of the queries.

    ``queries``: [rows, heads, head_dim], those from ``first`` on; ``keys``, ``values``: [heads, all rows, head_dim].
    """
    for block in spans.blocks(first, first + len(queries)):
        asking = queries[block.queries.start - first : block.queries.stop - first]
        full_attention(asking, keys[:, block.keys], values[:, block.keys], block.spans)


class Merger:
    """Makes one embedding of the patches of each square."""

    def __init__(
        self, spec: VisionSpec, merger: MergerSpec, parameters: Parameters, place: str, method: LinearMethod
    ) -> None:
        self.merger = merger
        self.size = spec.merged * spec.width
        self.norm = build_norm(merger.norm, parameters, f"{place}.norm")
        up, down = (method.create(parameters, parameters.linear(f"{place}.{name}")) for name in ("up", "down"))
        self.mlp = MLP(MLPSpec(merger.inner, merger.activation, gated=False, bias=True), up, down)
        self.nbytes = up.nbytes + down.nbytes + self.norm.weight.nbytes
        self.nbytes += 0 if self.norm.bias is None else self.norm.bias.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """[embeddings * merged, width], contiguous, to [embeddings, hidden]."""
        normed = self.norm(x.view(-1, self.size) if self.merger.norm_merged else x)
        return self.mlp(normed.view(-1, self.size), None)
