"""Routing in Triton: one program a token, its scores in registers, groups as rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from blade_llm.spec.moe import RoutingSpec


@triton.jit
def _largest(x):
    return tl.max(tl.max(x, 1), 0)


@triton.jit
def _route_kernel(
    logits_ptr,
    bias_ptr,
    ids_ptr,
    weights_ptr,
    scale,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    SIGMOID: tl.constexpr,
    BIASED: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    SIZE: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    LIMITED: tl.constexpr,
    GROUPS_BLOCK: tl.constexpr,
    SIZE_BLOCK: tl.constexpr,
    TOP_BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    groups = tl.arange(0, GROUPS_BLOCK)[:, None]
    members = tl.arange(0, SIZE_BLOCK)[None, :]
    expert = groups * SIZE + members
    exists = (members < SIZE) & (expert < EXPERTS)
    logits = tl.load(logits_ptr + token * EXPERTS + expert, exists, float("-inf")).to(tl.float32)
    if SIGMOID:
        scores = 1.0 / (1.0 + tl.exp(-logits))
    else:
        powers = tl.exp(logits - _largest(logits))
        scores = powers / tl.sum(tl.sum(tl.where(exists, powers, 0.0), 1), 0)
    choice = scores
    if BIASED:
        choice += tl.load(bias_ptr + expert, exists, 0.0)
    choice = tl.where(choice != choice, float("inf"), choice)  # NaN is the largest, as in torch.topk
    choice = tl.where(exists, choice, float("-inf"))
    free = exists
    if LIMITED:
        best = tl.max(choice, 1)
        if BIASED:
            first = tl.min(tl.where(choice == best[:, None], members, SIZE_BLOCK), 1)
            best += tl.max(tl.where(members == first[:, None], float("-inf"), choice), 1)
        index = tl.arange(0, GROUPS_BLOCK)
        closed = index * SIZE < EXPERTS
        for _ in tl.static_range(TOP_GROUPS):
            candidates = tl.where(closed, best, float("-inf"))
            equal = closed & (candidates == tl.max(candidates, 0))
            closed &= index != tl.min(tl.where(equal, index, GROUPS_BLOCK), 0)
        free &= (closed == 0)[:, None]
    places = tl.arange(0, TOP_BLOCK)
    ids = tl.zeros([TOP_BLOCK], tl.int32)
    weights = tl.zeros([TOP_BLOCK], tl.float32)
    for place in tl.static_range(TOP_K):
        candidates = tl.where(free, choice, float("-inf"))
        equal = free & (candidates == _largest(candidates))
        chosen = tl.min(tl.min(tl.where(equal, expert, 1 << 30), 1), 0)
        weight = tl.sum(tl.sum(tl.where(expert == chosen, tl.where(exists, scores, 0.0), 0.0), 1), 0)
        ids = tl.where(places == place, chosen, ids)
        weights = tl.where(places == place, weight, weights)
        free &= expert != chosen
    if RENORMALIZE:
        weights /= tl.sum(weights, 0) + 1e-20
    at = token * TOP_K + places
    tl.store(ids_ptr + at, ids, places < TOP_K)
    tl.store(weights_ptr + at, weights * scale, places < TOP_K)


def route(logits: Tensor, spec: RoutingSpec, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    logits = logits.contiguous()
    tokens, experts = logits.shape
    ids = torch.empty(tokens, spec.top_k, dtype=torch.int32, device=logits.device)
    weights = torch.empty(tokens, spec.top_k, device=logits.device)
    if not tokens:
        return ids, weights
    groups = spec.num_groups if spec.limits_groups else 1
    size = experts // groups
    _route_kernel[(tokens,)](
        logits,
        logits if bias is None else bias,
        ids,
        weights,
        float(spec.scale),
        EXPERTS=experts,
        TOP_K=spec.top_k,
        SIGMOID=spec.scoring == "sigmoid",
        BIASED=bias is not None,
        RENORMALIZE=spec.renormalize,
        SIZE=size,
        TOP_GROUPS=spec.top_groups,
        LIMITED=spec.limits_groups,
        GROUPS_BLOCK=triton.next_power_of_2(groups),
        SIZE_BLOCK=triton.next_power_of_2(size),
        TOP_BLOCK=triton.next_power_of_2(spec.top_k),
        num_warps=1,
    )
    return ids, weights
