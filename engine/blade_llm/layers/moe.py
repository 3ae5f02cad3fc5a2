"""The mixture-of-experts feed-forward layer: a router, experts of which each token uses a few, and an expert that all
tokens share where a model has one (DeepSeekMoE, Dai et al., arXiv 2401.06066; Qwen2-MoE with a gate before it)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from blade_llm.kernels.experts import Expert, of_layers, pack
from blade_llm.kernels.experts.packed import LayerPair, MixtureWeights, PackedExperts, Part
from blade_llm.kernels.linear.packed import Quantization
from blade_llm.kernels.moe_routing import route
from blade_llm.kernels.warm import warm_moe
from blade_llm.layers.linear import Linear, LinearOptions
from blade_llm.layers.mlp import MLP
from blade_llm.layers.step import StepMetadata
from blade_llm.spec.moe import MoESpec


@dataclass(frozen=True, slots=True)
class MoEWeights:
    """What a checkpoint has for one layer."""

    router: Tensor
    """[num_experts, hidden]."""
    experts: Iterable[Expert] | Iterable[LayerPair]
    """For each that is here, gate and up stacked ([2 * inner, hidden]) and down ([hidden, inner]); read once, one at a
    time. Where they are ``packed``, layers of these."""
    correction_bias: Tensor | None = None
    """[num_experts], added to scores for the choice (``e_score_correction_bias``)."""
    shared: tuple[Linear, Linear] | Expert | None = None
    """As an expert, with ``shared_inner``; or its layers."""
    shared_gate: Tensor | None = None
    """[1, hidden]."""
    packed: bool = False
    """Whether the experts are packed already, quantised as their checkpoint has them."""


class MoE:
    """Takes the place of :class:`~blade_llm.layers.mlp.MLP` in a decoder layer."""

    __slots__ = ("correction_bias", "experts", "nbytes", "router", "shared", "shared_gate", "spec")

    def __init__(self, spec: MoESpec, weights: MoEWeights, options: LinearOptions | None = None) -> None:
        """``options``: for experts, the shared one too. Router and gate are never quantised: they are small, and their
        rounding would send tokens to other experts. Raises ValueError for weights that are not ``spec``'s."""
        options = options or LinearOptions()
        _check(spec, weights)
        exact = LinearOptions("none", options.deterministic, options.packer)
        router = weights.router.float() if spec.float32_router else weights.router
        bias = weights.correction_bias
        self.spec = spec
        self.router = Linear(router, None, exact)
        self.correction_bias = bias.float().contiguous() if bias is not None else None
        experts = _of_size(weights.experts, spec)
        part = None if spec.part is None else Part(spec.part.start, spec.routing.num_experts)
        self.experts: PackedExperts
        if weights.packed:
            self.experts = of_layers(experts, part)
        else:
            quant = _of_experts(options.quant)
            self.experts = pack(experts, quant, deterministic=options.deterministic, packer=options.packer, part=part)
        self.shared: MLP | None = None
        self.shared_gate: Linear | None = None
        self.nbytes = self.router.nbytes + self.experts.nbytes + (bias.numel() * 4 if bias is not None else 0)
        if weights.shared is not None and spec.shared is not None:
            gate_up, down = (
                each if isinstance(each, Linear) else Linear(each, None, options) for each in weights.shared
            )
            self.shared = MLP(spec.shared, gate_up, down)
            self.nbytes += gate_up.nbytes + down.nbytes
        if weights.shared_gate is not None:
            self.shared_gate = Linear(weights.shared_gate, None, exact)
            self.nbytes += self.shared_gate.nbytes

    def __call__(self, x: Tensor, step: StepMetadata | None = None) -> Tensor:
        """[tokens, hidden] to the same. Nothing in ``step`` is needed."""
        ids, weights = route(self.logits(x), self.spec.routing, self.correction_bias)
        result = self.experts(x, ids, weights)
        if self.shared is None:
            return result
        shared = self.shared(x, step)
        if self.shared_gate is not None:
            shared = shared.mul_(F.sigmoid(self.shared_gate(x)))
        return result.add_(shared)

    @property
    def fusable(self) -> MixtureWeights | None:
        """The weights for the operator that computes whole layers; None where it does not know what the layer has."""
        if self.shared is not None or self.spec.float32_router:
            return None
        return MixtureWeights(self.router.packed, self.experts, self.spec.routing, self.correction_bias)

    def logits(self, x: Tensor) -> Tensor:
        """The router's: [tokens, num_experts], fp32 with ``float32_router``."""
        return self.router(x.float() if self.spec.float32_router else x)

    def warm(self, x: Tensor) -> None:
        """Compile the kernels before the first request, on a GPU. ``x``: [tokens, hidden] of the type in use."""
        warm_moe(self.logits(x), self.spec.routing, self.correction_bias, self.experts, x.dtype)


def _of_experts(quant: Quantization) -> Quantization:
    """Their activations are not rounded."""
    return "int8" if quant == "w8a8" else quant


def _check(spec: MoESpec, weights: MoEWeights) -> None:
    experts, hidden = spec.routing.num_experts, weights.router.shape[1]
    expected: list[tuple[str, Tensor | None, tuple[int, ...]]] = [
        ("router", weights.router, (experts, hidden)),
        ("correction_bias", weights.correction_bias, (experts,)),
        ("shared_gate", weights.shared_gate, (1, hidden)),
    ]
    if weights.shared is not None and isinstance(weights.shared[0], Tensor):
        expected.append(("shared gate_up", weights.shared[0], (2 * spec.shared_inner, hidden)))
    for name, tensor, shape in expected:
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ValueError(f"{name} must be {list(shape)}, not {list(tensor.shape)}")
    if (weights.shared is not None) != (spec.shared_inner > 0):
        raise ValueError(f"a shared expert is {'missing' if spec.shared_inner else 'given, but shared_inner is 0'}")
    if (weights.shared_gate is not None) != spec.shared_gate:
        raise ValueError(f"a gate of the shared expert is {'missing' if spec.shared_gate else 'given but not wanted'}")


def _of_size(experts: Iterable[Any], spec: MoESpec) -> Iterable[Any]:
    """``experts``, if they are as many and, where these are tensors, as large as ``spec`` says."""
    count = 0
    for count, (gate_up, down) in enumerate(experts, 1):
        if isinstance(down, Tensor) and down.shape[1] != spec.inner:
            raise ValueError(f"expert {count - 1} has an inner size of {down.shape[1]}, not {spec.inner}")
        yield gate_up, down
    if count != len(spec.experts):
        raise ValueError(f"{count} experts, not {len(spec.experts)}")
