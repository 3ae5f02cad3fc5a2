"""Root-mean-square normalisation (Zhang & Sennrich, arXiv 1910.07467), alone and fused with the residual addition.

Statistics are taken in fp32 whatever the input's type, as the reference models do.
"""

from torch import Tensor

from blade_llm.kernels.backend import backend_of
from blade_llm.kernels.rms_norm import torch as _reference


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, unit_offset: bool = False) -> Tensor:
    """``x / rms(x) * weight`` over the last dimension.

    ``x``: [tokens, hidden], contiguous; ``weight``: [hidden], same type. ``unit_offset``: the factor is ``1 + weight``,
    and the product is taken in fp32 (Gemma, arXiv 2403.08295); without, ``x / rms(x)`` is rounded first, as in Llama.
    Returns a new tensor like ``x``.
    """
    backend = backend_of(x)
    if backend == "native":
        from blade_llm.kernels.rms_norm import native

        return native.rms_norm(x, weight, eps, unit_offset)
    if backend == "triton":
        from blade_llm.kernels.rms_norm import triton

        return triton.rms_norm(x, weight, eps, unit_offset)
    return _reference.rms_norm(x, weight, eps, unit_offset)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, unit_offset: bool = False
) -> tuple[Tensor, Tensor]:
    """``sum = x + residual``; returns ``(rms_norm(sum), sum)``. Shapes as in :func:`rms_norm`; may overwrite ``x``."""
    backend = backend_of(x)
    if backend == "native":
        from blade_llm.kernels.rms_norm import native

        return native.add_rms_norm(x, residual, weight, eps, unit_offset)
    if backend == "triton":
        from blade_llm.kernels.rms_norm import triton

        return triton.add_rms_norm(x, residual, weight, eps, unit_offset)
    return _reference.add_rms_norm(x, residual, weight, eps, unit_offset)
