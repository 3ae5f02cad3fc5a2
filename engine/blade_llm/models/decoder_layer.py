"""One decoder layer, as its spec says."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from blade_llm.kernels.decoder_layers.weights import LayerWeights
from blade_llm.layers.attention import Attention
from blade_llm.layers.latent_attention import LatentAttention, key_matrices, value_matrices
from blade_llm.layers.linear import Linear
from blade_llm.layers.mlp import MLP
from blade_llm.layers.moe import MoE
from blade_llm.layers.norm import LayerNorm, NoNorm, Norm, RMSNorm
from blade_llm.layers.step import Rotation, StepMetadata
from blade_llm.models.linear_method import LinearMethod
from blade_llm.models.parameters import Parameters
from blade_llm.parallel.group import RankGroup
from blade_llm.spec.attention import AttentionSpec
from blade_llm.spec.decoder import LayerSpec
from blade_llm.spec.latent_attention import LatentAttentionSpec
from blade_llm.spec.moe import MoESpec
from blade_llm.spec.norm import NormSpec


def build_norm(spec: NormSpec, parameters: Parameters, place: str) -> RMSNorm | LayerNorm:
    """The normalisation at ``place``."""
    weight = parameters.tensor(f"{place}.weight")
    if spec.kind != "layer":
        return RMSNorm(weight, spec.eps, spec.kind == "rms_unit_offset")
    return LayerNorm(weight, parameters.tensor(f"{place}.bias") if spec.bias else None, spec.eps)


def build_attention(
    index: int,
    spec: AttentionSpec | LatentAttentionSpec,
    parameters: Parameters,
    method: LinearMethod,
    device: torch.device,
    group: RankGroup | None = None,
) -> Attention | LatentAttention:
    """The attention of layer ``index``. ``group``: the ranks that each have some of its heads."""
    place = f"layers.{index}.attention"

    def linear(name: str) -> Linear:
        return method.create(parameters, parameters.linear(f"{place}.{name}"))

    def weight(name: str) -> Tensor:
        return parameters.tensor(f"{place}.{name}.weight")

    if isinstance(spec, LatentAttentionSpec):
        query = (weight("query_norm"), linear("query_up")) if spec.query_rank else None
        key_up = parameters.made(f"{place}.kv_up", "keys", partial(key_matrices, spec))
        value_up = parameters.made(f"{place}.kv_up", "values", partial(value_matrices, spec))
        down, output, norm = linear("down"), linear("output"), weight("latent_norm")
        return LatentAttention(index, spec, down, query, norm, key_up, value_up, output, method.deterministic)
    norms = None if spec.head_norm is None else (weight("q_norm"), weight("k_norm"))
    return Attention(index, spec, linear("qkv"), linear("output"), norms, device, group)


class DecoderLayer:
    """Attention and MLP, each with its norms, one after the other or side by side."""

    def __init__(
        self,
        spec: LayerSpec,
        parameters: Parameters,
        index: int,
        method: LinearMethod,
        group: RankGroup | None = None,
    ) -> None:
        """``group``: the ranks that each have a part of attention's heads and of the MLP."""
        place = f"layers.{index}"

        def linear(name: str) -> Linear:
            return method.create(parameters, parameters.linear(f"{place}.{name}"))

        def norm(name: str, wanted: NormSpec | None) -> RMSNorm | LayerNorm | None:
            return None if wanted is None else build_norm(wanted, parameters, f"{place}.{name}")

        assert not spec.norms_after, "of encoders"
        self.spec = spec
        self._group = group
        before, after = (
            norm("attention_norm", spec.attention_norm),
            norm("attention_output_norm", spec.attention_output_norm),
        )
        self.attention_norm = before or NoNorm()
        self.attention_output_norm = after
        self.attention = build_attention(index, spec.attention, parameters, method, self.weight.device, group)
        self.mlp_norm = norm("mlp_norm", spec.mlp_norm) or (None if spec.parallel else NoNorm())
        self.mlp: MLP | MoE
        if isinstance(spec.mlp, MoESpec):
            self.mlp = method.moe(parameters, f"{place}.mlp", spec.mlp)
        else:
            self.mlp = MLP(spec.mlp, linear("mlp.up"), linear("mlp.down"))
        self.mlp_output_norm = norm("mlp_output_norm", spec.mlp_output_norm)

    def __call__(
        self,
        x: Tensor,
        residual: Tensor | None,
        rotation: Rotation,
        step: StepMetadata,
        selected: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """``x`` is what the previous layer adds to ``residual``; returns both again. [tokens, hidden] each.

        ``selected``: [selected] int64, the only tokens to go on with after attention.
        """
        x, residual = (self.attention_norm(x), x) if residual is None else self.attention_norm.add(x, residual)
        attended = self.added(self.attention(x, rotation, step, selected), self.attention_output_norm)
        if selected is not None:
            residual = residual.index_select(0, selected)
            step = step.of_selected()
        if self.spec.parallel:
            if self.mlp_norm is not None:
                x = self.mlp_norm(residual)
            elif selected is not None:
                x = x.index_select(0, selected)
            return attended + self.added(self.mlp(x, step), self.mlp_output_norm), residual
        assert self.mlp_norm is not None
        x, residual = self.mlp_norm.add(attended, residual)
        return self.added(self.mlp(x, step), self.mlp_output_norm), residual

    def added(self, x: Tensor, norm: Norm | None = None) -> Tensor:
        """What a half adds: of several ranks, the sum of their parts."""
        if self._group is not None:
            x = self._group.all_reduce(x)
        if norm is not None:
            x = norm(x)
        return x if self.spec.residual_scale == 1.0 else x * self.spec.residual_scale

    @property
    def weight(self) -> Tensor:
        """Of one of its norms: on the device and in the type of its states."""
        for norm in (self.attention_norm, self.attention_output_norm):
            if isinstance(norm, RMSNorm | LayerNorm):
                return norm.weight
        raise AssertionError("attention has a norm before it or after it")

    @property
    def nbytes(self) -> int:
        """Of all linear layers and experts."""
        mlp = self.mlp.nbytes if isinstance(self.mlp, MoE) else self.mlp.up.nbytes + self.mlp.down.nbytes
        return self.attention.nbytes + mlp

    @property
    def fusable(self) -> LayerWeights | None:
        """The weights for the operator that computes whole layers; None where it does not know what the layer has."""
        attention, mlp = self.attention, self.mlp
        before, between = self.attention_norm, self.mlp_norm
        mixture = mlp.fusable if isinstance(mlp, MoE) else None
        if isinstance(attention, LatentAttention) or (isinstance(mlp, MoE) and mixture is None):
            return None
        if not (isinstance(before, RMSNorm | LayerNorm) and isinstance(between, RMSNorm | LayerNorm)):
            return None
        if self.spec.parallel or self.spec.attention.head_norm_whole:
            return None
        if self.attention_output_norm or self.mlp_output_norm or self.spec.residual_scale != 1.0:
            return None
        linears = [attention.qkv, attention.output, *(() if isinstance(mlp, MoE) else (mlp.up, mlp.down))]
        adapters = [linear.adapters for linear in linears] + [None] * (4 - len(linears))
        return LayerWeights(
            before.weight,
            attention.qkv.packed,
            attention.output.packed,
            between.weight,
            None if isinstance(mlp, MoE) else mlp.up.packed,
            None if isinstance(mlp, MoE) else mlp.down.packed,
            attention.q_norm,
            attention.k_norm,
            attention.spec.window,
            attention.variant,
            before.bias,
            between.bias,
            mixture,
            tuple(adapters),
        )
