"""Activations in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from blade_llm.spec.mlp import Activation


def activate(x: Tensor, kind: Activation, gated: bool) -> Tensor:
    if not gated:
        return _activate(x, kind)
    gate, up = x.chunk(2, dim=-1)
    return _activate(gate, kind).mul_(up)


def _activate(x: Tensor, kind: Activation) -> Tensor:
    if kind == "silu":
        return F.silu(x)
    if kind == "gelu":
        return F.gelu(x)
    if kind == "gelu_tanh":
        return F.gelu(x, approximate="tanh")
    if kind == "quick_gelu":
        wide = x.float()
        return (wide * torch.sigmoid(1.702 * wide)).to(x.dtype)
    return F.relu(x) if kind == "relu" else F.relu(x).square_()
