"""One decoder layer, as its spec says."""

from __future__ import annotations

from torch import Tensor

from blade_llm.kernels.decoder_layers.weights import LayerWeights
from blade_llm.layers.attention import Attention
from blade_llm.layers.linear import Linear
from blade_llm.layers.mlp import MLP
from blade_llm.layers.norm import LayerNorm, Norm, RMSNorm
from blade_llm.layers.step import Rotation, StepMetadata
from blade_llm.models.linear_method import LinearMethod
from blade_llm.models.parameters import Parameters
from blade_llm.spec.decoder import LayerSpec
from blade_llm.spec.norm import NormSpec


def build_norm(spec: NormSpec, parameters: Parameters, place: str) -> Norm:
    """The normalisation at ``place``."""
    weight = parameters.tensor(f"{place}.weight")
    if spec.kind == "rms":
        return RMSNorm(weight, spec.eps)
    return LayerNorm(weight, parameters.tensor(f"{place}.bias") if spec.bias else None, spec.eps)


class DecoderLayer:
    """``x += attention(norm(x))``, then ``x += mlp(norm(x))``."""

    def __init__(self, spec: LayerSpec, parameters: Parameters, index: int, method: LinearMethod) -> None:
        place = f"layers.{index}"

        def linear(name: str) -> Linear:
            return method.create(parameters, parameters.linear(f"{place}.{name}"))

        norms: tuple[Tensor, Tensor] | None = None
        if spec.attention.head_norm is not None:
            norms = (
                parameters.tensor(f"{place}.attention.q_norm.weight"),
                parameters.tensor(f"{place}.attention.k_norm.weight"),
            )
        self.spec = spec
        self.attention_norm = build_norm(spec.attention_norm, parameters, f"{place}.attention_norm")
        self.attention = Attention(index, spec.attention, linear("attention.qkv"), linear("attention.output"), norms)
        self.mlp_norm = build_norm(spec.mlp_norm, parameters, f"{place}.mlp_norm")
        self.mlp = MLP(spec.mlp, linear("mlp.up"), linear("mlp.down"))

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
        x = self.attention(x, rotation, step, selected)
        if selected is not None:
            residual = residual.index_select(0, selected)
        x, residual = self.mlp_norm.add(x, residual)
        return self.mlp(x, step), residual

    @property
    def linears(self) -> tuple[Linear, ...]:
        """All linear layers."""
        return (self.attention.qkv, self.attention.output, self.mlp.up, self.mlp.down)

    @property
    def fusable(self) -> LayerWeights | None:
        """The weights for the operator that computes whole layers; None where it does not know what the layer has."""
        attention, mlp = self.attention, self.mlp
        before, between = self.attention_norm, self.mlp_norm
        if not (isinstance(before, RMSNorm) and isinstance(between, RMSNorm)):
            return None
        if not (mlp.spec.gated and mlp.spec.activation == "silu"):
            return None
        return LayerWeights(
            before.weight,
            attention.qkv.packed,
            attention.output.packed,
            between.weight,
            mlp.up.packed,
            mlp.down.packed,
            attention.q_norm,
            attention.k_norm,
            attention.spec.window,
        )
