"""Routing and grouped experts in Triton against torch and plain arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from engine_support.triton_interpreter import COMPILED, DEVICE, record_launches

# isort: split
from engine_support.moe_cases import (
    ROUTING,
    RoutingCase,
    bias_of,
    elsewhere_left_out,
    plain,
    random_experts,
    random_ids,
    relative_error,
)
from engine_support.pairwise import pairwise
from torch import Tensor

from blade_llm.kernels.experts import triton as experts_triton
from blade_llm.kernels.experts.packed import Part
from blade_llm.kernels.experts.torch import TorchExperts
from blade_llm.kernels.experts.triton import TritonExperts, config_of
from blade_llm.kernels.linear.packed import Quantization
from blade_llm.kernels.moe_routing import torch as reference
from blade_llm.kernels.moe_routing import triton as routing
from blade_llm.spec.moe import RoutingSpec

QUANTS: list[Quantization] = ["none", "int8", "int4"]
QUANTISED = pytest.mark.parametrize("quant", QUANTS)
BOUND = {torch.bfloat16: 1.2e-2, torch.float32: 2e-6}


def on_device(weights: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    return [(gate_up.to(DEVICE), down.to(DEVICE)) for gate_up, down in weights]


def inputs(tokens: int, hidden: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(tokens, hidden, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("case", ROUTING, ids=str)
def test_routing(case: RoutingCase) -> None:
    logits = inputs(12, case.spec.num_experts) * 2
    bias = bias_of(case)
    expected_ids, expected_weights = reference.route(logits, case.spec, bias)
    ids, weights = routing.route(logits.to(DEVICE), case.spec, bias.to(DEVICE) if bias is not None else None)
    assert (ids.dtype, weights.dtype) == (torch.int32, torch.float32)
    assert torch.equal(ids.cpu(), expected_ids)
    torch.testing.assert_close(weights.cpu(), expected_weights, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("case", ROUTING, ids=str)
def test_equal_scores_go_to_the_lowest_experts(case: RoutingCase) -> None:
    logits = torch.zeros(2, case.spec.num_experts, device=DEVICE)
    bias = torch.zeros(case.spec.num_experts, device=DEVICE) if case.biased else None
    ids, weights = routing.route(logits, case.spec, bias)
    assert ids.tolist() == [list(range(case.spec.top_k))] * 2
    expected = reference.route(logits, case.spec, bias)[1]
    torch.testing.assert_close(weights, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("case", ROUTING, ids=str)
def test_nan_is_chosen_and_stays_nan(case: RoutingCase) -> None:
    logits, bias = inputs(4, case.spec.num_experts), bias_of(case)
    expected_ids, _ = reference.route(logits, case.spec, bias)
    logits[1], logits[2, 5] = float("nan"), float("nan")
    ids, weights = routing.route(logits.to(DEVICE), case.spec, bias.to(DEVICE) if bias is not None else None)
    assert all(len(set(row)) == case.spec.top_k and min(row) >= 0 for row in ids.tolist())
    assert int(ids.max()) < case.spec.num_experts
    assert weights[1].isnan().all()
    assert weights[2].isnan().any()
    assert torch.equal(ids[[0, 3]].cpu(), expected_ids[[0, 3]])
    assert weights[[0, 3]].isfinite().all()


SHAPES = [(8, 64, 32, 2), (5, 70, 45, 5), (3, 160, 200, 1)]


@pytest.mark.parametrize(
    ("experts", "hidden", "inner", "top_k", "quant", "dtype"),
    pairwise([pytest.param(*each) for each in SHAPES], QUANTS, [torch.bfloat16, torch.float32]),
)
def test_experts_equal_plain_products(
    quant: Quantization, dtype: torch.dtype, experts: int, hidden: int, inner: int, top_k: int
) -> None:
    weights = random_experts(experts, hidden, inner, dtype)
    packed = TritonExperts(on_device(weights), quant, deterministic=False)
    for tokens in (1, 3, 40):
        x, (ids, scales) = inputs(tokens, hidden, dtype), random_ids(tokens, experts, top_k, seed=tokens)
        y = packed(x.to(DEVICE), ids.to(DEVICE), scales.to(DEVICE))
        assert y.dtype == dtype
        assert relative_error(y.cpu(), plain(x, weights, ids, scales, quant)) < BOUND[dtype], tokens


@pytest.mark.parametrize("average", [1, 16, 64])
def test_every_form(average: int) -> None:
    """With more pairs than one program sorts at a time, tiles that are full and tiles that are not."""
    tokens, top_k, experts = max(3, average * 20 // 2), 2, 20
    weights = random_experts(experts, 48, 32, torch.float32)
    x, (ids, scales) = inputs(tokens, 48), random_ids(tokens, experts, top_k)
    ids[: tokens // 3, 0] = torch.where(ids[: tokens // 3, 1] == 7, 6, 7)  # one expert has many
    packed = TritonExperts(on_device(weights), "none", deterministic=False)
    assert config_of(tokens * top_k // experts or 1, 4, 1 << 16).rows == {1: 16, 16: 64, 64: 128}[average]
    y = packed(x.to(DEVICE), ids.to(DEVICE), scales.to(DEVICE))
    assert relative_error(y.cpu(), plain(x, weights, ids, scales)) < BOUND[torch.float32]


def test_experts_without_tokens_and_one_with_all() -> None:
    weights = random_experts(8, 64, 32, torch.float32)
    for expert in (0, 1, 3, 5, 6, 7):
        weights[expert] = (torch.full((64, 64), float("nan")), torch.full((64, 32), float("nan")))
    packed = TritonExperts(on_device(weights), "none", deterministic=False)
    x, scales = inputs(30, 64), torch.rand(30, 1)
    for ids in (torch.full((30, 1), 4), torch.tensor([[2], [4]] * 15)):
        y = packed(x.to(DEVICE), ids.int().to(DEVICE), scales.to(DEVICE))
        assert relative_error(y.cpu(), plain(x, weights, ids, scales)) < BOUND[torch.float32]


@QUANTISED
@pytest.mark.parametrize("here", [range(3), range(3, 7), range(7, 8)], ids=str)
def test_a_part_of_the_experts_adds_up_what_is_theirs(quant: Quantization, here: range) -> None:
    """What lies where results of experts elsewhere would be is no number."""
    weights = random_experts(8, 64, 45, torch.float32)
    own = [weights[expert] for expert in here]
    packed = TritonExperts(on_device(own), quant, deterministic=False, part=Part(here.start, 8))
    reference = TorchExperts(own, quant, False, Part(here.start, 8))
    for tokens in (1, 3, 40):
        x, (ids, scales) = inputs(tokens, 64), random_ids(tokens, 8, 2, seed=tokens)
        ids[0] = torch.tensor([(here.stop + place) % 8 if len(here) < 4 else 2 * place for place in range(2)])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "empty", _without_numbers(torch.empty))
            y = packed(x.to(DEVICE), ids.to(DEVICE), scales.to(DEVICE)).cpu()
        assert torch.equal(y[0], torch.zeros(64))
        left = elsewhere_left_out(ids, scales, here)
        for expected in (reference(x, ids, scales), plain(x, weights, ids, left, quant)):
            assert relative_error(y, expected) < BOUND[torch.float32] or not expected.any(), tokens


def _without_numbers(empty: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Memory that holds anything."""

    def made(*args: Any, **kwargs: Any) -> Tensor:
        found = empty(*args, **kwargs)
        return found.fill_(float("nan")) if found.is_floating_point() else found

    return made


def test_a_part_computes_only_tiles_of_its_own_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sorted pairs, from which tiles follow, are those of experts here."""
    starts: list[Tensor] = []
    original = TritonExperts._launch

    def launch(self: TritonExperts, x: Tensor, matrix: Any, order: Tensor, begins: Tensor, *rest: Any) -> None:
        starts.append(begins.cpu())
        original(self, x, matrix, order, begins, *rest)

    monkeypatch.setattr(TritonExperts, "_launch", launch)
    packed = TritonExperts(on_device(random_experts(3, 64, 32, torch.float32)), "none", False, Part(2, 8))
    ids, scales = random_ids(50, 8, 2)
    packed(inputs(50, 64).to(DEVICE), ids.to(DEVICE), scales.to(DEVICE))
    counts = ids.flatten().bincount(minlength=8)[2:5]
    assert starts[0].tolist() == [0, *counts.cumsum(0).tolist()]


def test_no_tokens() -> None:
    packed = TritonExperts(on_device(random_experts(4, 64, 32)), "none", deterministic=False)
    nothing = torch.empty(0, 2, dtype=torch.int32, device=DEVICE)
    assert packed(inputs(0, 64).to(DEVICE), nothing, nothing.float()).shape == (0, 64)
    assert routing.route(torch.empty(0, 8, device=DEVICE), RoutingSpec(8, 2), None)[0].shape == (0, 2)


@QUANTISED
def test_deterministic_tokens_do_not_depend_on_the_batch(quant: Quantization) -> None:
    """One form serves every number of tokens, so a token's sums have the same order."""
    packed = TritonExperts(on_device(random_experts(4, 96, 64)), quant, deterministic=True)
    x = inputs(300, 96, torch.bfloat16).to(DEVICE)
    ids, scales = (tensor.to(DEVICE) for tensor in random_ids(300, 4, 2))
    whole = packed(x, ids, scales)
    for tokens in (1, 5, 70):
        assert torch.equal(packed(x[:tokens], ids[:tokens], scales[:tokens]), whole[:tokens])


@pytest.mark.skipif(COMPILED, reason="only the interpreter's launches are recorded")
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("part", [None, Part(1, 4)], ids=["all", "part"])
def test_warm_compiles_every_variant(deterministic: bool, part: Part | None, monkeypatch: pytest.MonkeyPatch) -> None:
    variants = record_launches(monkeypatch)
    packed = TritonExperts(on_device(random_experts(2 if part else 4, 32, 32)), "none", deterministic, part)
    packed.warm(torch.float32, 2)
    warmed = set(variants)
    for tokens in (1, 2, 3, 16, 31, 32, 33, 64, 129):
        ids, scales = (tensor.to(DEVICE) for tensor in random_ids(tokens, 4, 2))
        packed(inputs(tokens, 32).to(DEVICE), ids, scales)
    assert variants == warmed
    products = [variant for variant in variants if variant[0] == "grouped_linear"]
    assert len(products) == 2 * (1 if deterministic else 3)


@pytest.mark.parametrize("shared_memory", [64 << 10, 99 << 10, 227 << 10])
def test_loads_in_flight_fit_the_shared_memory(shared_memory: int) -> None:
    for average in experts_triton._FORMS:
        for element_size in (2, 4):
            config = config_of(average, element_size, shared_memory)
            stage = (config.rows + config.columns) * config.depth * element_size
            assert config.stages * stage <= shared_memory
