"""Linear layers of quantised weights on GPUs, in Triton and cuBLAS.

Weights alone quantised (affine integers of up to 8 bits, e4m3): :mod:`.packed`; activations rounded, too:
:mod:`.rounded`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blade_llm.kernels.linear.float8 import Float8Weight
from blade_llm.kernels.linear.gpu.words import why_no_words
from blade_llm.kernels.linear.packed import PackedLinear
from blade_llm.kernels.linear.quantized import QuantizedWeight

DTYPES = (torch.bfloat16, torch.float16)
"""Of the activations that the kernels multiply."""


def why_not(weight: QuantizedWeight | Float8Weight, dtype: torch.dtype) -> str:
    """In words, why the kernels do not multiply activations of ``dtype`` by ``weight``; empty where they do."""
    if dtype not in DTYPES:
        return f"activations in {str(dtype).removeprefix('torch.')}"
    if (rounding := weight.activations) is None:
        return why_no_words(weight)
    if (rounding.kind == "fp8") != isinstance(weight, Float8Weight):
        return f"activations in {rounding.kind}"
    from blade_llm.kernels.linear.gpu.rounded import why_not_rounded

    return why_not_rounded(weight, rounding.group_size)


def pack(
    weight: QuantizedWeight | Float8Weight, bias: Tensor | None, dtype: torch.dtype, *, deterministic: bool
) -> PackedLinear:
    """As :func:`blade_llm.kernels.linear.pack_quantized`, with Triton. Raises ValueError for what :func:`why_not`
    names."""
    from blade_llm.kernels.linear.gpu.packed import GpuLinear

    if reason := why_not(weight, dtype):
        raise ValueError(f"no kernel of a GPU multiplies by quantised weights with {reason}")
    if (rounding := weight.activations) is None:
        return GpuLinear(weight, bias, dtype, deterministic=deterministic)
    from blade_llm.kernels.linear.gpu.rounded import RoundedLinear

    scale, group_size = rounding.scale, rounding.group_size
    return RoundedLinear(weight, bias, dtype, input_scale=scale, group_size=group_size, deterministic=deterministic)
