"""The gate of a gated MLP: SiLU of one half of the fused projection, times the other half."""

from torch import Tensor

from blade_llm.kernels.backend import backend_of
from blade_llm.kernels.silu_and_mul import torch as _reference


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up``: [tokens, inner]. ``gate_up``: [tokens, 2 * inner], contiguous, gate first; may be
    overwritten."""
    backend = backend_of(gate_up)
    if backend == "native":
        from blade_llm.kernels.silu_and_mul import native

        return native.silu_and_mul(gate_up)
    if backend == "triton":
        from blade_llm.kernels.silu_and_mul import triton

        return triton.silu_and_mul(gate_up)
    return _reference.silu_and_mul(gate_up)
