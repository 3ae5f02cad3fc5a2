"""Products of int8 with int8: activations are rounded token by token, weights have a scale for each output.

Integers add up exactly, so how they are multiplied changes no result: up to 64 rows by a Triton kernel that splits the
inputs where outputs are few, more by cuBLAS (``torch._int_mm``). Sums are scaled in fp32, and rounded once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blade_llm.kernels.linear.gpu import rounded_kernels as kernels
from blade_llm.kernels.linear.gpu.forms import MOST_ROWS, form_of, split_units, stages_of
from blade_llm.kernels.linear.gpu.rounding import round_rows

MOST_INPUTS = 1 << 17
"""More products of -128 with -128 could overflow 32 bits."""
_DEPTH = 128
"""Inputs of an iteration."""
_MULTIPLE = 8
"""What ``torch._int_mm`` on a GPU takes inputs and outputs by; and it takes more than 16 rows."""
_LEAST_SUMS = 1 << 21
_BLOCK = 1024


def int8_linear(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    input_scale: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """[tokens, in] bf16 or fp16 times ``weight`` ([out, in] int8, contiguous) times ``weight_scale`` ([out] fp16, bf16
    or fp32) plus ``bias`` ([out]), to [tokens, out] of the type of ``x``.

    ``input_scale``: one number in fp32 with which all activations are rounded (static); None: each token has its own
    (dynamic), as :func:`~blade_llm.kernels.linear.gpu.rounding.round_rows` says. Raises ValueError for a weight of
    another type or with more than :data:`MOST_INPUTS` inputs.
    """
    outputs, inputs = weight.shape
    if weight.dtype != torch.int8 or inputs > MOST_INPUTS:
        raise ValueError(f"the weight must be int8 with up to {MOST_INPUTS} inputs, not {inputs} {weight.dtype}")
    rows = len(x)
    y = x.new_empty(rows, outputs)
    if not rows:
        return y
    values, scales = round_rows(x, "int8", input_scale)
    at_once = _outputs_at_once(rows, outputs, inputs)
    for first in range(0, outputs, at_once):
        some = slice(first, first + at_once)
        sums = _sums(values, weight[some])
        kernels.scale_sums[(-(-sums.shape[2] // _BLOCK), rows)](
            sums,
            scales,
            weight_scale[some],
            x if bias is None else bias[some],
            y[:, some],
            rows,
            OUTPUTS=sums.shape[2],
            ALL_OUTPUTS=outputs,
            SPLITS=len(sums),
            BIASED=bias is not None,
            BLOCK=_BLOCK,
            num_warps=4,
        )
    return y


def _outputs_at_once(rows: int, outputs: int, inputs: int) -> int:
    """Outputs whose sums, of 4 bytes, exist at a time: for many rows no more than half as many as there are inputs, so
    that the memory of a step is what is planned for it
    (:func:`blade_llm.spec.quantization.weights.dequantized_bytes`)."""
    if rows <= MOST_ROWS:
        return outputs
    block = max(inputs // 2, _LEAST_SUMS // rows)
    return min(outputs, max(_MULTIPLE, block - block % _MULTIPLE))


def _sums(x: Tensor, weight: Tensor) -> Tensor:
    """[splits, rows, out] int32."""
    rows, (outputs, inputs) = len(x), weight.shape
    if rows > MOST_ROWS and inputs % _MULTIPLE == 0 and outputs % _MULTIPLE == 0:
        return torch._int_mm(x, weight.t())[None]
    form = form_of(min(rows, MOST_ROWS), deterministic=False)
    splits, each = split_units(-(-inputs // _DEPTH), outputs, form.outputs, x.device)
    if rows > MOST_ROWS:
        splits, each = 1, -(-inputs // _DEPTH)
    sums = torch.empty(splits, rows, outputs, dtype=torch.int32, device=x.device)
    kernels.multiply_int8[(-(-outputs // form.outputs), -(-rows // form.rows), splits)](
        x,
        weight,
        sums,
        rows,
        OUTPUTS=outputs,
        INPUTS=inputs,
        SPLIT_STEPS=each,
        BLOCK_M=form.rows,
        BLOCK_N=form.outputs,
        BLOCK_K=_DEPTH,
        num_warps=form.warps,
        num_stages=stages_of(form, (form.outputs + form.rows) * _DEPTH, x.device),
    )
    return sums
