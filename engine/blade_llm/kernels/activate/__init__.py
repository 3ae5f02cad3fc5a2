"""Activations of feed-forward layers, plain, or as the gate of the other half of a fused projection (Shazeer,
arXiv 2002.05202)."""

from torch import Tensor

from blade_llm.kernels.activate import torch as _reference
from blade_llm.kernels.activate.kinds import FORMULAS
from blade_llm.kernels.backend import backend_of
from blade_llm.spec.mlp import Activation


def activate(x: Tensor, kind: Activation, *, gated: bool) -> Tensor:
    """``act(x)``: [tokens, inner] to the same; or ``act(gate) * up``: [tokens, 2 * inner], contiguous, gate first, to
    [tokens, inner].

    Computed in fp32 and rounded to the type of ``x`` before the product. May overwrite ``x``. Raises
    :class:`ValueError` for another kind.
    """
    if kind not in FORMULAS:
        raise ValueError(f"activation {kind!r} is not one of {', '.join(FORMULAS)}")
    backend = backend_of(x)
    if backend == "native":
        from blade_llm.kernels.activate import native

        return native.activate(x, kind, gated)
    if backend == "triton":
        from blade_llm.kernels.activate import triton

        return triton.activate(x, kind, gated)
    return _reference.activate(x, kind, gated)
