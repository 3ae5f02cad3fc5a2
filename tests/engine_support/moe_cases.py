"""Mixture-of-experts layers for tests: routing rules of real families, random experts, and plain arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blade_llm.kernels.linear import torch as linear
from blade_llm.kernels.linear.packed import Quantization
from blade_llm.spec.moe import RoutingSpec

HIDDEN = 32


@dataclass(frozen=True)
class RoutingCase:
    """A rule, and the router of transformers that has it."""

    name: str
    spec: RoutingSpec
    router: Callable[[], nn.Module]
    biased: bool = False

    def __str__(self) -> str:
        return self.name


def _mixtral() -> nn.Module:
    from transformers.models.mixtral.modeling_mixtral import MixtralConfig, MixtralTopKRouter

    return MixtralTopKRouter(MixtralConfig(hidden_size=HIDDEN, num_local_experts=8, num_experts_per_tok=2))


def _qwen2(normalise: bool) -> nn.Module:
    from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeConfig, Qwen2MoeTopKRouter

    config = Qwen2MoeConfig(hidden_size=HIDDEN, num_experts=60, num_experts_per_tok=4, norm_topk_prob=normalise)
    return Qwen2MoeTopKRouter(config)


def _qwen3() -> nn.Module:
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeConfig, Qwen3MoeTopKRouter

    config = Qwen3MoeConfig(hidden_size=HIDDEN, num_experts=128, num_experts_per_tok=8, norm_topk_prob=True)
    return Qwen3MoeTopKRouter(config)


def _deepseek_v2(method: str) -> nn.Module:
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Config, DeepseekV2TopkRouter

    sizes: dict[str, Any] = {"n_routed_experts": 160, "num_experts_per_tok": 6, "n_group": 8, "topk_group": 3}
    config = DeepseekV2Config(hidden_size=HIDDEN, topk_method=method, routed_scaling_factor=16.0, **sizes)
    return DeepseekV2TopkRouter(config)


def _deepseek_v3(normalise: bool) -> nn.Module:
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Config, DeepseekV3TopkRouter

    sizes: dict[str, Any] = {"n_routed_experts": 256, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4}
    config = DeepseekV3Config(hidden_size=HIDDEN, routed_scaling_factor=2.5, norm_topk_prob=normalise, **sizes)
    return DeepseekV3TopkRouter(config)


ROUTING = [
    RoutingCase("mixtral", RoutingSpec(8, 2, renormalize=True), _mixtral),
    RoutingCase("qwen2", RoutingSpec(60, 4), lambda: _qwen2(False)),
    RoutingCase("qwen2-normalised", RoutingSpec(60, 4, renormalize=True), lambda: _qwen2(True)),
    RoutingCase("qwen3", RoutingSpec(128, 8, renormalize=True), _qwen3),
    RoutingCase("deepseek-v2-lite", RoutingSpec(160, 6, scale=16.0), lambda: _deepseek_v2("greedy")),
    RoutingCase(
        "deepseek-v2",
        RoutingSpec(160, 6, scale=16.0, num_groups=8, top_groups=3),
        lambda: _deepseek_v2("group_limited_greedy"),
    ),
    RoutingCase(
        "deepseek-v3", RoutingSpec(256, 8, "sigmoid", True, 2.5, 8, 4), lambda: _deepseek_v3(True), biased=True
    ),
    RoutingCase(
        "deepseek-v3-plain", RoutingSpec(256, 8, "sigmoid", False, 2.5, 8, 4), lambda: _deepseek_v3(False), biased=True
    ),
]


def bias_of(case: RoutingCase) -> Tensor | None:
    """A correction bias large enough to change choices."""
    generator = torch.Generator().manual_seed(7)
    return torch.randn(case.spec.num_experts, generator=generator) * 0.2 if case.biased else None


def by_transformers(case: RoutingCase, logits: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Ids and weights of transformers' router for ``logits``, which take the place of its product."""
    router = case.router()
    router.hidden_dim = logits.shape[1]  # type: ignore[assignment]
    if bias is not None:
        router.e_score_correction_bias = bias
    with torch.no_grad(), patch("torch.nn.functional.linear", lambda x, weight: x):
        _, weights, ids = router(logits)
    return ids, weights


def random_experts(
    count: int, hidden: int, inner: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0
) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return (torch.randn(shape, generator=generator) * shape[1] ** -0.5).to(dtype)

    return [(random(2 * inner, hidden), random(hidden, inner)) for _ in range(count)]


def as_stored(weight: Tensor, quant: Quantization) -> Tensor:
    """The weight that a quantised layer has, in fp32."""
    if quant == "int8":
        integers, scales = linear.quantize_int8(weight)
        return integers * scales
    if quant == "int4":
        return linear.dequantize_int4(*linear.quantize_int4(weight), weight.shape[1])
    return weight.float()


def plain(
    x: Tensor, experts: list[tuple[Tensor, Tensor]], ids: Tensor, weights: Tensor, quant: Quantization = "none"
) -> Tensor:
    """Token by token and expert by expert, in fp32, rounded to ``x``'s type where layers hand over their results."""
    stored = [(as_stored(gate_up, quant), as_stored(down, quant)) for gate_up, down in experts]
    out = torch.zeros(x.shape)
    for token in range(len(x)):
        for expert, weight in zip(ids[token].tolist(), weights[token], strict=True):
            gate, up = (stored[expert][0] @ x[token].float()).to(x.dtype).chunk(2)
            gated = (F.silu(gate) * up).float()
            out[token] += weight * (stored[expert][1] @ gated).to(x.dtype).float()
    return out.to(x.dtype)


def random_ids(tokens: int, experts: int, top_k: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Different experts for each token, and weights."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.rand(tokens, experts, generator=generator).argsort(1)[:, :top_k].int().contiguous()
    return ids, torch.rand(tokens, top_k, generator=generator)


def elsewhere_left_out(ids: Tensor, weights: Tensor, here: range) -> Tensor:
    """``weights``, of experts that are not ``here`` 0."""
    return torch.where((ids >= here.start) & (ids < here.stop), weights, 0.0)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.float() - expected.float()).norm() / expected.float().norm())
