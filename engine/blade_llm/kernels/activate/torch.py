"""Activations in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from blade_llm.kernels.activate.kinds import Formula


def activate(x: Tensor, formula: Formula, gated: bool) -> Tensor:
    if not gated:
        return _activate(x, formula)
    gate, up = x.chunk(2, dim=-1)
    return _activate(gate, formula).mul_(up)


def _activate(x: Tensor, formula: Formula) -> Tensor:
    if formula == "silu":
        return F.silu(x)
    if formula == "gelu":
        return F.gelu(x)
    if formula == "gelu_tanh":
        return F.gelu(x, approximate="tanh")
    if formula == "quick_gelu":
        wide = x.float()
        return (wide * torch.sigmoid(1.702 * wide)).to(x.dtype)
    return F.relu(x) if formula == "relu" else F.relu(x).square_()
