"""Routing in torch and C++ against transformers' routers, ties and NaN included."""

from __future__ import annotations

import pytest
import torch
from engine_support.moe_cases import ROUTING, RoutingCase, bias_of, by_transformers
from engine_support.native_isa import needs_native
from torch import Tensor

from blade_llm.kernels.moe_routing import native, route
from blade_llm.kernels.moe_routing import torch as reference
from blade_llm.spec.moe import RoutingSpec

IMPLEMENTATIONS = [reference.route, pytest.param(native.route, marks=needs_native)]
CASES = pytest.mark.parametrize("case", ROUTING, ids=str)
IMPLEMENTED = pytest.mark.parametrize("implementation", IMPLEMENTATIONS, ids=["torch", "native"])


def random(tokens: int, case: RoutingCase, seed: int = 0) -> Tensor:
    return torch.randn(tokens, case.spec.num_experts, generator=torch.Generator().manual_seed(seed)) * 2


def in_order(ids: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """By id: DeepSeek's routers do not sort what they chose."""
    order = ids.long().argsort(1)
    return ids.gather(1, order).long(), weights.gather(1, order)


@CASES
@IMPLEMENTED
@pytest.mark.parametrize("tokens", [1, 3, 300])
def test_equals_transformers(case: RoutingCase, implementation: object, tokens: int) -> None:
    assert callable(implementation)
    logits, bias = random(tokens, case), bias_of(case)
    ids, weights = implementation(logits, case.spec, bias)
    assert (ids.dtype, weights.dtype) == (torch.int32, torch.float32)
    assert ids.shape == weights.shape == (tokens, case.spec.top_k)
    expected_ids, expected_weights = in_order(*by_transformers(case, logits, bias))
    ids, weights = in_order(ids, weights)
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(weights, expected_weights, atol=1e-6, rtol=1e-5)


@CASES
@IMPLEMENTED
@pytest.mark.parametrize("levels", [1, 2, 4])
def test_ties_are_transformers(case: RoutingCase, implementation: object, levels: int) -> None:
    """Few different logits, so that the choice among equals decides; without a bias, which would part them."""
    assert callable(implementation)
    generator = torch.Generator().manual_seed(levels)
    logits = torch.randint(levels, (200, case.spec.num_experts), generator=generator).float()
    bias = None if bias_of(case) is None else torch.zeros(case.spec.num_experts)
    expected_ids, expected_weights = in_order(*by_transformers(case, logits, bias))
    ids, weights = in_order(*implementation(logits, case.spec, bias))
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(weights, expected_weights, atol=1e-6, rtol=1e-5)


@CASES
@IMPLEMENTED
def test_nan_is_chosen_and_stays_nan(case: RoutingCase, implementation: object) -> None:
    assert callable(implementation)
    logits, bias = random(6, case), bias_of(case)
    expected = implementation(logits, case.spec, bias)
    logits[1], logits[3, 5], logits[4, 2] = float("nan"), float("nan"), float("inf")
    theirs = in_order(*by_transformers(case, logits, bias))
    ids, weights = implementation(logits, case.spec, bias)
    assert all(len(set(row)) == case.spec.top_k and min(row) >= 0 for row in ids.tolist())
    assert int(ids.max()) < case.spec.num_experts
    for row in (0, 2, 5):
        assert torch.equal(ids[row], expected[0][row])
        assert torch.equal(weights[row], expected[1][row])
    assert weights[1].isnan().all()
    assert weights[3].isnan().any()
    sorted_ids, sorted_weights = in_order(ids, weights)
    assert torch.equal(sorted_ids, theirs[0])
    torch.testing.assert_close(sorted_weights, theirs[1], atol=1e-6, rtol=1e-5, equal_nan=True)


@IMPLEMENTED
def test_bf16_logits_are_routed_in_fp32(implementation: object) -> None:
    assert callable(implementation)
    logits = torch.randn(20, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    spec = RoutingSpec(64, 6, renormalize=True)
    ids, weights = implementation(logits, spec, None)
    expected_ids, expected_weights = reference.route(logits.float(), spec, None)
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(weights, expected_weights)


@IMPLEMENTED
def test_no_tokens(implementation: object) -> None:
    assert callable(implementation)
    ids, weights = implementation(torch.empty(0, 8), RoutingSpec(8, 2), None)
    assert ids.shape == weights.shape == (0, 2)


def test_sigmoids_that_are_all_zero_yield_zero_weights() -> None:
    """Not 0 / 0."""
    _, weights = route(torch.full((1, 8), -200.0), RoutingSpec(8, 2, "sigmoid", renormalize=True))
    assert torch.equal(weights, torch.zeros(1, 2))


def test_strided_logits() -> None:
    logits = torch.randn(7, 16)[:, ::2]
    for actual, expected in zip(
        route(logits, RoutingSpec(8, 3)), reference.route(logits, RoutingSpec(8, 3), None), strict=True
    ):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_experts": 8, "top_k": 9}, "top_k must be 1 to 8"),
        ({"num_experts": 8, "top_k": 0}, "top_k must be 1 to 8"),
        ({"num_experts": 8, "top_k": 5, "num_groups": 4, "top_groups": 2}, "top_k must be 1 to 4, the experts of 2"),
        ({"num_experts": 10, "top_k": 1, "num_groups": 4}, "10 experts cannot be divided into 4"),
        ({"num_experts": 8, "top_k": 1, "num_groups": 4, "top_groups": 5}, "top_groups must be 1 to 4"),
        ({"num_experts": 8, "top_k": 1, "scoring": "tanh"}, "softmax or sigmoid, not 'tanh'"),
    ],
)
def test_impossible_rules_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RoutingSpec(**arguments)  # type: ignore[arg-type]


def test_wrong_logits_are_refused() -> None:
    with pytest.raises(ValueError, match="expected logits of 8 experts, got"):
        route(torch.zeros(2, 9), RoutingSpec(8, 2))
    with pytest.raises(ValueError, match="two best experts"):
        route(torch.zeros(2, 8), RoutingSpec(8, 2, "sigmoid", num_groups=8, top_groups=2), torch.zeros(8))
