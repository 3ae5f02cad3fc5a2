"""The thresholds in Triton, without a sort: one program a row searches for the smallest logit such that those above it
weigh less than a target, where top-k weighs each with 1 and top-p with its probability.

Three passes over the row suffice as a rule. The first leaves the largest logit of each lane, and these alone give a
lower bound of the threshold: what weighs enough among them does so among all. The second counts in each lane what
reaches the bound, the third gathers it; what is left fits into registers, and there the search ends at exactly the
value a sort would find. Where too much is left, as in a flat distribution, the search goes over the whole row. Sums are
taken in a fixed order that other rows have no part in. (To search over values instead of places, and first to gather
the outliers: as in Qrita, arXiv 2602.01518.)
"""

from __future__ import annotations

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
def _lowest_among(x, low, high, target, best, MASS: tl.constexpr):
    """:func:`_lowest_within` among ``x``, which is in registers."""
    infinity = float("inf")
    weight = tl.exp(x - best) if MASS else tl.full(x.shape, 1.0, tl.float32)
    while low < high:
        above = x > _pivot(low, high, 0.5)
        if tl.sum(tl.where(above, weight, 0.0), 0) < target:
            high = tl.max(tl.where(above, -infinity, x), 0)
        else:
            low = tl.min(tl.where(above, x, infinity), 0)
    return high


@triton.jit
def _lowest_within(row_ptr, low, high, target, best, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr, MASS: tl.constexpr):
    """The smallest logit of the row from ``low`` to ``high`` with less than ``target`` above it.

    ``high`` is one, and ``low`` another or a value with no less than ``target`` above it. ``MASS``: a logit weighs
    ``exp(logit - best)`` instead of 1.
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
        # The result is at most the largest logit under the first pivot that is light enough, and above all others.
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
    candidates_ptr,
    out_ptr,
    VOCABULARY: tl.constexpr,
    MIN_P: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    row_ptr = logits_ptr + row * VOCABULARY
    infinity = float("inf")
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    limited = (top_k > 0) & (top_k < VOCABULARY)
    nucleus = top_p < 1.0
    needed = limited | nucleus
    min_p = 0.0
    if MIN_P:
        min_p = tl.load(min_p_ptr + row)
        needed = needed | (min_p > 0.0)

    threshold = -infinity
    if needed:
        # Of each lane: the largest, the sum of exp(x - largest), the smallest and the number of those not masked.
        largest = tl.full([BLOCK], -infinity, tl.float32)
        mass = tl.zeros([BLOCK], tl.float32)
        smallest = tl.full([BLOCK], infinity, tl.float32)
        finite = tl.zeros([BLOCK], tl.int32)
        for start in tl.range(0, VOCABULARY, BLOCK, num_stages=3):
            x = tl.load(row_ptr + start + lanes, start + lanes < VOCABULARY, -infinity)
            larger = tl.maximum(largest, x)
            base = tl.where(larger == -infinity, 0.0, larger)
            mass = mass * tl.exp(largest - base) + tl.exp(x - base)
            largest = larger
            smallest = tl.minimum(smallest, tl.where(x > -infinity, x, infinity))
            finite += tl.where(x > -infinity, 1, 0)
        best = tl.max(largest, 0)
        if (best == infinity) | (best == -infinity):  # nothing to search in
            threshold = best
        else:
            limited = limited & (top_k <= tl.sum(finite, 0))
            k = top_k.to(tl.float32)
            target = top_p * tl.sum(mass * tl.exp(largest - best), 0)
            lowest_largest = tl.min(tl.where(largest > -infinity, largest, infinity), 0)

            # No logit below the bound is the threshold.
            bound = -infinity
            if limited:
                if k <= tl.sum(tl.where(largest > -infinity, 1.0, 0.0), 0):
                    bound = _lowest_among(largest, lowest_largest, best, k, best, False)
            elif nucleus:
                if tl.sum(tl.exp(largest - best), 0) >= target:
                    bound = _lowest_among(largest, lowest_largest, best, target, best, True)
                else:
                    # All that lies deeper has, together, less than 1 - top_p of the probability.
                    bound = best + tl.log(target * (1.0 - top_p) / (top_p * VOCABULARY)) - 0.1

            counts = tl.zeros([BLOCK], tl.int32)
            if limited | nucleus:
                for start in tl.range(0, VOCABULARY, BLOCK, num_stages=3):
                    x = tl.load(row_ptr + start + lanes, start + lanes < VOCABULARY, -infinity)
                    counts += tl.where((x >= bound) & (x > -infinity), 1, 0)
            total = tl.sum(counts, 0)
            if (total > 0) & (total <= BLOCK):
                at_ptr = candidates_ptr + row * BLOCK + tl.cumsum(counts, 0) - counts
                for start in tl.range(0, VOCABULARY, BLOCK, num_stages=3):
                    x = tl.load(row_ptr + start + lanes, start + lanes < VOCABULARY, -infinity)
                    here = (x >= bound) & (x > -infinity)
                    tl.store(at_ptr, x, here)
                    at_ptr += tl.where(here, 1, 0)
                tl.debug_barrier()  # all are written
                x = tl.load(candidates_ptr + row * BLOCK + lanes, lanes < total, -infinity)
                low = tl.min(tl.where(lanes < total, x, infinity), 0)
                if limited:
                    threshold = _lowest_among(x, low, best, k, best, False)
                    low = threshold
                    target = top_p * tl.sum(tl.where(x >= threshold, tl.exp(x - best), 0.0), 0)
                if nucleus:
                    threshold = _lowest_among(x, low, best, target, best, True)
            elif total > 0:
                low = tl.maximum(bound, tl.min(smallest, 0))
                if limited:
                    threshold = _lowest_within(row_ptr, low, best, k, best, VOCABULARY, BLOCK, False)
                    low = threshold
                    kept = tl.zeros([BLOCK], tl.float32)
                    for start in tl.range(0, VOCABULARY, BLOCK, num_stages=3):
                        x = tl.load(row_ptr + start + lanes, start + lanes < VOCABULARY, -infinity)
                        kept += tl.where(x >= threshold, tl.exp(x - best), 0.0)
                    target = top_p * tl.sum(kept, 0)
                if nucleus:
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
            torch.empty(rows, _BLOCK, dtype=torch.float32, device=logits.device),
            out,
            VOCABULARY=vocabulary,
            MIN_P=min_p is not None,
            BLOCK=_BLOCK,
            num_warps=16,
        )
    return out
