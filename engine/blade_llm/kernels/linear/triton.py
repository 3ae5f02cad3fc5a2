"""Products of few rows with a plain weight in Triton, as decodes of few sequences have them: the time is that of
reading the weight, and cuBLAS leaves a tenth to a third of the memory's speed unused.

One row: each program sums up a few outputs, element by element. A few rows: a tile of the weight times the transposed
rows on tensor cores, eight tiles in flight. Sums are fp32 in a fixed order, rounded once. Everything else is cuBLAS's.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from blade_llm.kernels.shared_memory import shared_memory

MOST_ROWS = 32
LEAST_ROWS = 16
"""What a tensor core takes at least, so that fewer cost the same."""
_ONE_OUTPUTS, _ONE_DEPTH = 4, 512
"""Outputs of a program, and inputs of an iteration, for one row."""
_FEW_OUTPUTS, _FEW_DEPTH, _FEW_STAGES = 64, 128, 8
_LEAST_PROGRAMS = 48
"""Fewer programs of several rows do not keep a GPU's memory busy."""
_LONG = 8192
"""Inputs from which on more iterations are unrolled."""
_TYPES = (torch.bfloat16, torch.float16)


@triton.jit
def _one_row_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    INPUTS: tl.constexpr,
    BIASED: tl.constexpr,
    OUTPUTS: tl.constexpr,
    DEPTH: tl.constexpr,
    UNROLLED: tl.constexpr,
):
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    columns = tl.arange(0, DEPTH)
    weights = weight_ptr + outputs.to(tl.int64)[:, None] * INPUTS + columns[None, :]
    acc = tl.zeros([OUTPUTS, DEPTH], tl.float32)
    for step in tl.range(0, (INPUTS + DEPTH - 1) // DEPTH, loop_unroll_factor=UNROLLED):
        start = step * DEPTH
        if INPUTS % DEPTH == 0:
            x = tl.load(x_ptr + start + columns)
            weight = tl.load(weights + start, eviction_policy="evict_first")
        else:
            inside = start + columns < INPUTS
            x = tl.load(x_ptr + start + columns, inside, 0.0)
            weight = tl.load(weights + start, inside[None, :], 0.0, eviction_policy="evict_first")
        acc += weight.to(tl.float32) * x.to(tl.float32)[None, :]
    out = tl.sum(acc, 1)
    if BIASED:
        out += tl.load(bias_ptr + outputs).to(tl.float32)
    tl.store(out_ptr + outputs, out.to(out_ptr.dtype.element_ty))


@triton.jit(do_not_specialize=["rows"])
def _few_rows_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    rows,
    ALL_OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    BIASED: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    row = tl.arange(0, ROWS)
    columns = tl.arange(0, DEPTH)
    weights = weight_ptr + outputs.to(tl.int64)[:, None] * INPUTS + columns[None, :]
    xs = x_ptr + row[:, None] * INPUTS + columns[None, :]
    acc = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for start in range(0, INPUTS, DEPTH):
        weight = tl.load(weights + start)
        x = tl.load(xs + start, (row < rows)[:, None], 0.0)
        acc = tl.dot(weight, tl.trans(x), acc)
    if BIASED:
        acc += tl.load(bias_ptr + outputs).to(tl.float32)[:, None]
    at = out_ptr + row[None, :] * ALL_OUTPUTS + outputs[:, None]
    tl.store(at, acc.to(out_ptr.dtype.element_ty), (row < rows)[None, :])


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = len(x)
    if not 0 < rows <= MOST_ROWS or weight.dtype not in _TYPES or not (x.is_contiguous() and weight.is_contiguous()):
        return F.linear(x, weight, bias)
    outputs, inputs = weight.shape
    if rows == 1 and outputs % _ONE_OUTPUTS == 0 and inputs % 16 == 0:
        out = torch.empty(1, outputs, dtype=x.dtype, device=x.device)
        _one_row_kernel[(outputs // _ONE_OUTPUTS,)](
            x,
            weight,
            weight if bias is None else bias,
            out,
            INPUTS=inputs,
            BIASED=bias is not None,
            OUTPUTS=_ONE_OUTPUTS,
            DEPTH=_ONE_DEPTH,
            UNROLLED=4 if inputs >= _LONG else 2,
            num_warps=4,
        )
        return out
    programs = outputs // _FEW_OUTPUTS
    if programs < _LEAST_PROGRAMS or outputs % _FEW_OUTPUTS or inputs % _FEW_DEPTH:
        return F.linear(x, weight, bias)
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    padded = LEAST_ROWS if rows <= LEAST_ROWS else MOST_ROWS
    stage = (_FEW_OUTPUTS + padded) * _FEW_DEPTH * x.element_size()
    _few_rows_kernel[(programs,)](
        x,
        weight,
        weight if bias is None else bias,
        out,
        rows,
        ALL_OUTPUTS=outputs,
        INPUTS=inputs,
        BIASED=bias is not None,
        ROWS=padded,
        OUTPUTS=_FEW_OUTPUTS,
        DEPTH=_FEW_DEPTH,
        num_warps=4,
        num_stages=max(1, min(_FEW_STAGES, (shared_memory(x.device) - 1024) // stage)),
    )
    return out
