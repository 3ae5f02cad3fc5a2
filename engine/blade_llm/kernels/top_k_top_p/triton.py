"""The thresholds in Triton, without a sort: one program a row searches for the smallest logit such that those above it
weigh less than a target, where top-k weighs each with 1 and top-p with its probability.

A pass over the row weighs what lies above three pivots at once and quarters the interval, whose ends always are logits
of the row: so the search ends at exactly the value a sort would find (the idea is that of pivot-based selection; cf.
Qrita, arXiv 2602.01518). Sums are taken in a fixed order that other rows have no part in.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096


@triton.jit
def _pivot(low, high, share):
    """A value between, at least ``low`` and below ``high``."""
    pivot = low * (1.0 - share) + high * share
    return tl.where((pivot >= high) | (pivot < low), low, pivot)


@triton.jit
def _lowest_within(row_ptr, low, high, target, best, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr, MASS: tl.constexpr):
    """The smallest logit from ``low`` to ``high``, both of them logits, with less than ``target`` above it.

    ``high`` must be one. ``MASS``: weighs a logit ``exp(logit - best)`` instead of 1.
    """
    infinity = float("inf")
    while low < high:
        pivot_1 = _pivot(low, high, 0.25)
        pivot_2 = _pivot(low, high, 0.5)
        pivot_3 = _pivot(low, high, 0.75)
        weight_1 = tl.zeros([BLOCK], tl.float32)
        weight_2 = tl.zeros([BLOCK], tl.float32)
        weight_3 = tl.zeros([BLOCK], tl.float32)
        over_1 = tl.full([BLOCK], infinity, tl.float32)
        over_2 = tl.full([BLOCK], infinity, tl.float32)
        over_3 = tl.full([BLOCK], infinity, tl.float32)
        under_1 = tl.full([BLOCK], -infinity, tl.float32)
        under_2 = tl.full([BLOCK], -infinity, tl.float32)
        under_3 = tl.full([BLOCK], -infinity, tl.float32)
        for start in tl.range(0, VOCABULARY, BLOCK, num_stages=3):
            token = start + tl.arange(0, BLOCK)
            x = tl.load(row_ptr + token, token < VOCABULARY, -infinity)
            weight = tl.exp(x - best) if MASS else tl.full([BLOCK], 1.0, tl.float32)
            above_1 = x > pivot_1
            above_2 = x > pivot_2
            above_3 = x > pivot_3
            weight_1 += tl.where(above_1, weight, 0.0)
            weight_2 += tl.where(above_2, weight, 0.0)
            weight_3 += tl.where(above_3, weight, 0.0)
            over_1 = tl.minimum(over_1, tl.where(above_1, x, infinity))
            over_2 = tl.minimum(over_2, tl.where(above_2, x, infinity))
            over_3 = tl.minimum(over_3, tl.where(above_3, x, infinity))
            under_1 = tl.maximum(under_1, tl.where(above_1, -infinity, x))
            under_2 = tl.maximum(under_2, tl.where(above_2, -infinity, x))
            under_3 = tl.maximum(under_3, tl.where(above_3, -infinity, x))
        # The answer is at most the largest logit under the first pivot that is light enough, and above all others.
        light_1 = tl.sum(weight_1, 0) < target
        light_2 = tl.sum(weight_2, 0) < target
        light_3 = tl.sum(weight_3, 0) < target
        down = tl.where(light_3, tl.max(under_3, 0), high)
        down = tl.where(light_2, tl.max(under_2, 0), down)
        high_next = tl.where(light_1, tl.max(under_1, 0), down)
        up = tl.where(light_1, low, tl.min(over_1, 0))
        up = tl.where(light_2, up, tl.min(over_2, 0))
        low = tl.where(light_3, up, tl.min(over_3, 0))
        high = high_next
    return high


@triton.jit(do_not_specialize_on_alignment=["top_k_ptr", "top_p_ptr", "min_p_ptr"])
def _thresholds_kernel(
    logits_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    out_ptr,
    LOG_VOCABULARY: tl.constexpr,
    VOCABULARY: tl.constexpr,
    MIN_P: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * VOCABULARY
    infinity = float("inf")
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    limited = (top_k > 0) & (top_k < VOCABULARY)
    nucleus = top_p < 1.0
    asked = limited | nucleus
    min_p = 0.0
    if MIN_P:
        min_p = tl.load(min_p_ptr + row)
        asked = asked | (min_p > 0.0)

    threshold = -infinity
    if asked:
        largest = tl.full([BLOCK], -infinity, tl.float32)
        smallest = tl.full([BLOCK], infinity, tl.float32)
        finite = tl.zeros([BLOCK], tl.int32)
        for start in tl.range(0, VOCABULARY, BLOCK, num_stages=3):
            token = start + tl.arange(0, BLOCK)
            x = tl.load(row_ptr + token, token < VOCABULARY, -infinity)
            largest = tl.maximum(largest, x)
            smallest = tl.minimum(smallest, tl.where(x > -infinity, x, infinity))
            finite += tl.where(x > -infinity, 1, 0)
        best = tl.max(largest, 0)
        if (best == infinity) | (best == -infinity):  # nothing to search in
            threshold = best
        else:
            if limited & (top_k <= tl.sum(finite, 0)):
                low = tl.min(smallest, 0)
                threshold = _lowest_within(row_ptr, low, best, top_k.to(tl.float32), best, VOCABULARY, BLOCK, False)
            if nucleus:
                # All that lies deeper has, together, less than 1 - top_p of the probability.
                deepest = tl.maximum(threshold, best - (LOG_VOCABULARY - tl.log(1.0 - top_p) + 0.5))
                total = tl.zeros([BLOCK], tl.float32)
                lowest = tl.full([BLOCK], infinity, tl.float32)
                for start in tl.range(0, VOCABULARY, BLOCK, num_stages=3):
                    token = start + tl.arange(0, BLOCK)
                    x = tl.load(row_ptr + token, token < VOCABULARY, -infinity)
                    total += tl.where(x >= threshold, tl.exp(x - best), 0.0)
                    lowest = tl.minimum(lowest, tl.where(x >= deepest, x, infinity))
                target = top_p * tl.sum(total, 0)
                low = tl.min(lowest, 0)
                threshold = _lowest_within(row_ptr, low, best, target, best, VOCABULARY, BLOCK, True)
            if min_p > 0.0:
                threshold = tl.maximum(threshold, best + tl.log(min_p))
    tl.store(out_ptr + row, threshold)


def top_k_top_p_thresholds(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor | None = None) -> Tensor:
    rows, vocabulary = logits.shape
    out = torch.empty(rows, dtype=torch.float32, device=logits.device)
    if rows:
        _thresholds_kernel[(rows,)](
            logits.contiguous(),
            top_k.contiguous(),
            top_p.contiguous(),
            (top_p if min_p is None else min_p).contiguous(),
            out,
            LOG_VOCABULARY=math.log(vocabulary),
            VOCABULARY=vocabulary,
            MIN_P=min_p is not None,
            BLOCK=_BLOCK,
            num_warps=16,
        )
    return out
