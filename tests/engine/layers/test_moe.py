"""The mixture-of-experts layer against transformers' own blocks with the same random weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from blade_llm.layers.linear import LinearOptions
from blade_llm.layers.moe import MoE, MoEWeights
from blade_llm.spec.moe import MoESpec, RoutingSpec

HIDDEN, INNER = 48, 40


def mixtral() -> tuple[nn.Module, MoESpec]:
    from transformers.models.mixtral.modeling_mixtral import MixtralConfig, MixtralSparseMoeBlock

    config = MixtralConfig(hidden_size=HIDDEN, intermediate_size=INNER, num_local_experts=8, num_experts_per_tok=2)
    return MixtralSparseMoeBlock(config), MoESpec(RoutingSpec(8, 2, renormalize=True), INNER)


def qwen3(normalise: bool = True) -> tuple[nn.Module, MoESpec]:
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeConfig, Qwen3MoeSparseMoeBlock

    sizes: dict[str, Any] = {"num_experts": 32, "num_experts_per_tok": 8, "norm_topk_prob": normalise}
    config = Qwen3MoeConfig(hidden_size=HIDDEN, moe_intermediate_size=INNER, **sizes)
    return Qwen3MoeSparseMoeBlock(config), MoESpec(RoutingSpec(32, 8, renormalize=normalise), INNER)


def qwen2() -> tuple[nn.Module, MoESpec]:
    from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeConfig, Qwen2MoeSparseMoeBlock

    sizes: dict[str, Any] = {"num_experts": 60, "num_experts_per_tok": 4, "shared_expert_intermediate_size": 88}
    config = Qwen2MoeConfig(hidden_size=HIDDEN, moe_intermediate_size=INNER, norm_topk_prob=False, **sizes)
    spec = MoESpec(RoutingSpec(60, 4), INNER, shared_inner=88, shared_gate=True)
    return Qwen2MoeSparseMoeBlock(config), spec


def deepseek_v2() -> tuple[nn.Module, MoESpec]:
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Config, DeepseekV2Moe

    sizes: dict[str, Any] = {"n_routed_experts": 32, "num_experts_per_tok": 6, "n_group": 8, "topk_group": 3}
    config = DeepseekV2Config(
        hidden_size=HIDDEN, num_attention_heads=4, moe_intermediate_size=INNER, n_shared_experts=2,
        topk_method="group_limited_greedy", routed_scaling_factor=16.0, **sizes,
    )  # fmt: skip
    routing = RoutingSpec(32, 6, scale=16.0, num_groups=8, top_groups=3)
    return DeepseekV2Moe(config), MoESpec(routing, INNER, shared_inner=2 * INNER, float32_router=True)


def deepseek_v3() -> tuple[nn.Module, MoESpec]:
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Config, DeepseekV3MoE

    sizes: dict[str, Any] = {"n_routed_experts": 64, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4}
    config = DeepseekV3Config(
        hidden_size=HIDDEN, moe_intermediate_size=INNER, n_shared_experts=1, routed_scaling_factor=2.5, **sizes
    )
    routing = RoutingSpec(64, 8, "sigmoid", True, 2.5, 8, 4)
    return DeepseekV3MoE(config), MoESpec(routing, INNER, shared_inner=INNER, float32_router=True)


BLOCKS = pytest.mark.parametrize(
    "block", [mixtral, qwen3, lambda: qwen3(False), qwen2, deepseek_v2, deepseek_v3],
    ids=["mixtral", "qwen3", "qwen3-plain", "qwen2", "deepseek-v2", "deepseek-v3"],
)  # fmt: skip


def random_block(block: Any, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, MoESpec, MoEWeights]:
    module, spec = block()
    generator = torch.Generator().manual_seed(0)
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        scale = 0.2 if "bias" in name else tensor.shape[-1] ** -0.5
        tensor.data = torch.randn(tensor.shape, generator=generator) * scale
        if "bias" not in name:
            tensor.data = tensor.data.to(dtype)
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    tensors = {name: tensor.data.clone() for name, tensor in tensors.items()}
    shared_name = next((name.split(".")[0] for name in tensors if "gate_proj" in name), None)
    shared = None
    if shared_name:
        gate, up, down = (tensors[f"{shared_name}.{part}_proj.weight"] for part in ("gate", "up", "down"))
        shared = torch.cat((gate, up)), down
    experts = zip(tensors["experts.gate_up_proj"], tensors["experts.down_proj"], strict=True)
    bias, gate = tensors.get("gate.e_score_correction_bias"), tensors.get("shared_expert_gate.weight")
    return module, spec, MoEWeights(tensors["gate.weight"], experts, bias, shared, gate)


def inputs(tokens: int) -> Tensor:
    return torch.randn(tokens, HIDDEN, generator=torch.Generator().manual_seed(1))


@BLOCKS
def test_equals_transformers(block: Any) -> None:
    module, spec, weights = random_block(block)
    layer = MoE(spec, weights)
    for tokens in (1, 2, 50):
        x = inputs(tokens)
        with torch.no_grad():
            expected = module(x[None])[0]
        kept = x.clone()
        torch.testing.assert_close(layer(x), expected, atol=1e-5, rtol=1e-5)
        assert torch.equal(x, kept)
    assert layer(inputs(0)).shape == (0, HIDDEN)


@BLOCKS
@pytest.mark.parametrize(("quant", "bound"), [("none", 0.02), ("int8", 0.03), ("int4", 0.2)])
def test_bf16_and_quantised_are_near_transformers(block: Any, quant: Any, bound: float) -> None:
    """Tokens that go to the same experts, which rounding may change: most do."""
    module, spec, weights = random_block(block, torch.bfloat16)
    layer = MoE(spec, weights, LinearOptions(quant))
    x = inputs(100).bfloat16()
    with torch.no_grad():
        expected = module.float()(x.float()[None])[0]
    errors = (layer(x).float() - expected).norm(dim=1) / expected.norm(dim=1)
    assert float(errors.median()) < bound
    assert float((errors < 2 * bound).float().mean()) > 0.85


@BLOCKS
@pytest.mark.parametrize("quant", ["none", "int8", "int4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_deterministic_tokens_do_not_depend_on_the_batch(block: Any, quant: Any, dtype: torch.dtype) -> None:
    _, spec, weights = random_block(block, dtype)
    layer = MoE(spec, weights, LinearOptions(quant, deterministic=True))
    x = inputs(70).to(dtype)
    whole = layer(x)
    for tokens in (1, 3, 33):
        assert torch.equal(layer(x[:tokens]), whole[:tokens])


def test_counts_its_bytes() -> None:
    _, spec, weights = random_block(qwen2)
    layer = MoE(spec, weights)
    tensors = 60 * (3 * INNER * HIDDEN) + 3 * 88 * HIDDEN + 60 * HIDDEN + HIDDEN
    assert layer.nbytes == tensors * 4


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (MoESpec(RoutingSpec(61, 4), INNER, 88, True), r"router must be \[61, 48\], not \[60, 48\]"),
        (MoESpec(RoutingSpec(60, 4), INNER + 1, 88, True), "expert 0 has an inner size of 40, not 41"),
        (MoESpec(RoutingSpec(60, 4), INNER, 80, True), r"shared gate_up must be \[160, 48\]"),
        (MoESpec(RoutingSpec(60, 4), INNER, 88, False), "gate of the shared expert is given but not wanted"),
    ],
)
def test_weights_that_are_not_the_specs_are_refused(spec: MoESpec, message: str) -> None:
    _, _, weights = random_block(qwen2)
    with pytest.raises(ValueError, match=message):
        MoE(spec, weights)


def test_missing_weights_are_refused() -> None:
    _, spec, weights = random_block(qwen3)
    few = MoEWeights(weights.router, list(weights.experts)[:31])
    with pytest.raises(ValueError, match="31 experts, not 32"):
        MoE(spec, few)
    with pytest.raises(ValueError, match="a shared expert is missing"):
        MoE(MoESpec(spec.routing, INNER, shared_inner=8), few)
