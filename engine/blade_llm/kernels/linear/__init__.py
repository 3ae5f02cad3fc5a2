"""Linear layers with the weight stored in the form the CPU multiplies fastest, in bf16 or quantised to 8 or 4 bits.

Only weights lose precision: activations are multiplied in bf16 or as 16-bit integers. With 8 bits a token, the outliers
of real models would round the rest away.

int8
    Symmetric, one fp32 scale per output.
int4
    16 levels (:data:`INT4_LEVELS`) and one bf16 scale for each group of 32 inputs: 4.5 bits a weight. The levels lie as
    normally distributed weights want them rather than evenly, which lowers the squared error by a fifth, and the scale
    is the least-squares fit to the levels chosen (both after Lloyd, "Least squares quantization in PCM", 1982).
"""

from __future__ import annotations

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor, bfloat16
from torch import dtype as DType

from blade_llm.kernels.backend import backend_of
from blade_llm.kernels.linear import gpu
from blade_llm.kernels.linear import torch as _reference
from blade_llm.kernels.linear.affine import AffineLinear
from blade_llm.kernels.linear.clamped import ClampedLinear
from blade_llm.kernels.linear.float8 import Float8Linear, Float8Weight
from blade_llm.kernels.linear.packed import PackedLinear, Quantization
from blade_llm.kernels.linear.quantized import QuantizedWeight

INT4_LEVELS = _reference.INT4_LEVELS
GROUP = _reference.GROUP
"""Inputs that share one scale in int4."""


def pack(
    weight: Tensor, bias: Tensor | None = None, quant: Quantization = "none", *, deterministic: bool = False
) -> PackedLinear | None:
    """Pack ``weight`` ([out, in], bf16 or fp32) with ``bias`` ([out]); the weight is not kept.

    ``deterministic``: a row's result is the same bits whatever the other rows and their number. The native bf16 kernels
    always do so: each output is one sum over the inputs in order. Quantised weights have a faster kernel for one or two
    rows that sums differently; it is then left out, which costs about half the speed of single streams. oneDNN (fp32,
    and bf16 without the native library) chooses by the number of rows, so it then always gets 16 at a time. So does
    cuBLAS, and gets 128: for fewer a GPU takes about as long, a long prefill up to twice.

    Returns None where the plain weight is best left to ``torch.nn.functional.linear``.
    """
    if weight.device.type == "cpu" and backend_of(weight) == "native":
        from blade_llm.kernels.linear import native

        packed = native.pack(weight, bias, quant, deterministic)
        if packed is not None:
            return packed
    return _reference.pack(weight, bias, quant, deterministic)


def pack_quantized(
    weight: QuantizedWeight | Float8Weight, bias: Tensor | None = None, *, deterministic: bool = False, dtype: DType
) -> PackedLinear:
    """Pack a weight that a checkpoint has quantised, with ``bias`` ([out]); neither is kept. Its numbers stay the same.

    ``deterministic``: as in :func:`pack`. ``dtype``: of the activations.
    """
    activations = weight.activations
    if activations is not None and activations.most is not None:
        unbounded = replace(weight, activations=replace(activations, most=None))
        inner = pack_quantized(unbounded, bias, deterministic=deterministic, dtype=dtype)
        return ClampedLinear(inner, activations.most)
    on_gpu = weight.scales.device.type == "cuda"
    rows = _reference.rows_at_once(on_gpu=on_gpu) if deterministic else None
    if backend_of(weight.scales) == "triton" and not gpu.why_not(weight, dtype):
        return gpu.pack(weight, bias, dtype, deterministic=deterministic)
    if dtype == bfloat16 and not on_gpu and backend_of(weight.scales) == "native":
        from blade_llm.kernels.linear import native

        if isinstance(weight, Float8Weight):
            packed = native.pack_float8(weight, bias, deterministic)
        else:
            packed = native.pack_quantized(weight, bias, deterministic)
        if packed is not None:
            return packed
    return Float8Linear(weight, bias, rows) if isinstance(weight, Float8Weight) else AffineLinear(weight, bias, rows)


def why_floats(weight: QuantizedWeight | Float8Weight, dtype: DType) -> str:
    """In words, why no kernel multiplies by such a weight as it is, where :func:`pack_quantized` found none."""
    if backend_of(weight.scales) == "triton":
        return gpu.why_not(weight, dtype)
    if weight.scales.device.type == "cuda":
        return "no Triton operators"
    if dtype != bfloat16:
        return f"activations in {str(dtype).removeprefix('torch.')}"
    if isinstance(weight, Float8Weight):
        group_size, columns = weight.block[1], weight.inputs
    else:
        group_size, columns = weight.group_size, weight.columns
    if group_size % GROUP and group_size < columns:
        return f"groups of {group_size}"
    if backend_of(weight.scales) != "native":
        return "no native operators"
    return "activations rounded in an unusual way" if weight.activations is not None else "unusual zero points"


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias`` with a weight that was not packed, as :func:`torch.nn.functional.linear`."""
    if backend_of(weight) == "triton":
        from blade_llm.kernels.linear import triton

        return triton.linear(x, weight, bias)
    return F.linear(x, weight, bias)
