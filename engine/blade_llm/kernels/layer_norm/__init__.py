"""Layer normalisation (Ba et al., arXiv 1607.06450), alone and fused with the residual addition.

All of it is computed in fp32 whatever the input's type, and rounded once.
"""

from torch import Tensor

from blade_llm.kernels.backend import backend_of
from blade_llm.kernels.layer_norm import torch as _reference


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """``(x - mean(x)) / sqrt(variance(x) + eps) * weight + bias`` over the last dimension.

    ``x``: [tokens, hidden], contiguous; ``weight``, ``bias``: [hidden], same type. Returns a new tensor like ``x``.
    """
    backend = backend_of(x)
    if backend == "native":
        from blade_llm.kernels.layer_norm import native

        return native.layer_norm(x, weight, bias, eps)
    if backend == "triton":
        from blade_llm.kernels.layer_norm import triton

        return triton.layer_norm(x, weight, bias, eps)
    return _reference.layer_norm(x, weight, bias, eps)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """``sum = x + residual``; returns ``(layer_norm(sum), sum)``. Shapes as in :func:`layer_norm`; may overwrite
    ``x``."""
    backend = backend_of(x)
    if backend == "native":
        from blade_llm.kernels.layer_norm import native

        return native.add_layer_norm(x, residual, weight, bias, eps)
    if backend == "triton":
        from blade_llm.kernels.layer_norm import triton

        return triton.add_layer_norm(x, residual, weight, bias, eps)
    return _reference.add_layer_norm(x, residual, weight, bias, eps)
