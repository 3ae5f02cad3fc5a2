"""The gate of a gated MLP with SiLU."""

from torch import Tensor

from blade_llm.kernels.activate import activate


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up``; see :func:`~blade_llm.kernels.activate.activate`."""
    return activate(gate_up, "silu", gated=True)
