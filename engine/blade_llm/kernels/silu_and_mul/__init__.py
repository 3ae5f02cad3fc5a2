"""The gate of a gated MLP: SiLU of one half of the fused projection, times the other half."""

from torch import Tensor

from blade_llm.kernels.silu_and_mul import torch as _torch


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up``: [tokens, inner]. ``gate_up``: [tokens, 2 * inner], gate first; may be overwritten."""
    return _torch.silu_and_mul(gate_up)
