"""Linear layers of quantised weights on GPUs, in Triton and cuBLAS.

Weights alone quantised (affine integers of up to 8 bits, e4m3): :mod:`.packed`, by :func:`pack`.
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
    return why_no_words(weight)


def pack(
    weight: QuantizedWeight | Float8Weight, bias: Tensor | None, dtype: torch.dtype, *, deterministic: bool
) -> PackedLinear:
    """As :func:`blade_llm.kernels.linear.pack_quantized`, with Triton. Raises ValueError for what :func:`why_not`
    names."""
    from blade_llm.kernels.linear.gpu.packed import GpuLinear

    if reason := why_not(weight, dtype):
        raise ValueError(f"no kernel of a GPU multiplies by quantised weights with {reason}")
    return GpuLinear(weight, bias, dtype, deterministic=deterministic)
