"""Products of e4m3 with e4m3: by cuBLAS and CUTLASS (``torch._scaled_mm``) where each token and each output has one
scale, else by a Triton kernel, which also takes scales of blocks (DeepSeek: 128 inputs by 128 outputs, activations by
128 inputs).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from blade_llm.kernels.linear.gpu import kernels as sums
from blade_llm.kernels.linear.gpu import rounded_kernels as kernels
from blade_llm.kernels.linear.gpu.forms import MOST_ROWS, Form, form_of, split_units, stages_of
from blade_llm.kernels.linear.gpu.rounding import round_rows

LEAST_CAPABILITY = (8, 9)
"""Of NVIDIA's GPUs that multiply e4m3: Ada Lovelace."""
LEAST_DEPTH = 32
"""Inputs that tensor cores take at a time, and so that share a scale at least."""
_DEPTH = 128
_MULTIPLE = 16
"""What ``torch._scaled_mm`` takes inputs and outputs by."""
_MANY = Form(128, 128, 8, 4)
_FIXED_ROWS = 128
"""Rows that a deterministic layer multiplies at once, so that parts of split sums stay small."""
_SUM_BLOCK = 1024


def multiplies_float8(device: torch.device) -> bool:
    """Whether the GPU has e4m3."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= LEAST_CAPABILITY


def depth_of(inputs: int, weight_group: int, x_group: int | None) -> int:
    """Inputs of an iteration: of a power of two, and with one scale of weights and one of activations."""
    parts = [part for part in (weight_group, x_group or inputs) if part < inputs]
    return math.gcd(_DEPTH, *parts)


def fp8_linear(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    block: tuple[int, int],
    input_scale: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    group_size: int | None = None,
    deterministic: bool = False,
) -> Tensor:
    """[tokens, in] bf16 or fp16 times ``weight`` ([out, in] float8_e4m3fn, contiguous) plus ``bias`` ([out] of the type
    of ``x``), to [tokens, out] of the type of ``x``.

    ``weight_scale``: [blocks of outputs, blocks of inputs] fp16, bf16 or fp32, ``block``: outputs and inputs that share
    one, as in :class:`~blade_llm.kernels.linear.float8.Float8Weight`. ``input_scale``, ``group_size``: how activations
    are rounded, as of :func:`~blade_llm.kernels.linear.gpu.rounding.round_rows`. ``deterministic``: a row's result does
    not depend on the others. Raises ValueError where fewer than :data:`LEAST_DEPTH` inputs share a scale.
    """
    outputs, inputs = weight.shape
    depth = depth_of(inputs, block[1], group_size)
    if depth < LEAST_DEPTH:
        raise ValueError(f"scales must be of multiples of {LEAST_DEPTH} inputs, not {block[1]} and {group_size}")
    rows = len(x)
    values, scales = round_rows(x, "e4m3", input_scale, group_size)
    by_row = scales.shape[1] == weight_scale.shape[1] == 1 and block[0] in (1, outputs)
    fits = inputs % _MULTIPLE == 0 and outputs % _MULTIPLE == 0 and x.dtype == torch.bfloat16
    if by_row and fits and rows and not deterministic and multiplies_float8(x.device):
        of_outputs = weight_scale.float().reshape(1, -1).expand(1, outputs).contiguous()
        return torch._scaled_mm(values, weight.t(), scales, of_outputs, bias, out_dtype=x.dtype)
    y = x.new_empty(rows, outputs)
    at_once = _FIXED_ROWS if deterministic else max(rows, 1)
    for first in range(0, rows, at_once):
        some = slice(first, first + at_once)
        form = form_of(MOST_ROWS, deterministic=True) if deterministic else _form(rows)
        _multiply(values[some], scales[some], weight, weight_scale, block, group_size, bias, y[some], form, depth)
    return y


def _form(rows: int) -> Form:
    return _MANY if rows > MOST_ROWS else form_of(rows, deterministic=False)


def _multiply(
    x: Tensor,
    x_scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    block: tuple[int, int],
    group_size: int | None,
    bias: Tensor | None,
    y: Tensor,
    form: Form,
    depth: int,
) -> None:
    rows, (outputs, inputs) = len(x), weight.shape
    steps = -(-inputs // depth)
    splits, each = split_units(steps, outputs, form.outputs, x.device) if form is not _MANY else (1, steps)
    parts = y if splits == 1 else torch.empty(splits, rows, outputs, device=x.device)
    kernels.multiply_float8[(-(-outputs // form.outputs), -(-rows // form.rows), splits)](
        x,
        x_scales,
        weight,
        weight_scales,
        y if bias is None else bias,
        parts,
        rows,
        OUTPUTS=outputs,
        INPUTS=inputs,
        SPLIT_STEPS=each,
        SPLITS=splits,
        X_GROUPS=x_scales.shape[1],
        X_GROUP=min(group_size or inputs, inputs),
        WEIGHT_GROUPS=weight_scales.shape[1],
        WEIGHT_GROUP=min(block[1], inputs),
        SHARING=min(block[0], outputs),
        BIASED=bias is not None,
        BLOCK_M=form.rows,
        BLOCK_N=form.outputs,
        BLOCK_K=depth,
        num_warps=form.warps,
        num_stages=stages_of(form, (form.outputs + form.rows) * depth, x.device),
    )
    if splits > 1:
        sums.sum_splits[(-(-outputs // _SUM_BLOCK), rows)](
            parts,
            y if bias is None else bias,
            y,
            rows,
            OUTPUTS=outputs,
            SPLITS=splits,
            BIASED=bias is not None,
            BLOCK=_SUM_BLOCK,
            num_warps=4,
        )
