"""A linear layer that stores its weight in the form the device multiplies fastest.

On CPU a bf16 weight is packed once into oneDNN's blocked layout, which saves the repacking of every call (about a
quarter of a decode step); everything else is ``torch.nn.functional.linear``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class Linear:
    """``x @ weight.T + bias``."""

    __slots__ = ("bias", "nbytes", "packed", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """``weight``: [out, in]; ``bias``: [out]."""
        self.nbytes = weight.nbytes + (bias.nbytes if bias is not None else 0)
        self.packed = can_pack(weight)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous()) if self.packed else weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, in] to [tokens, out]."""
        if self.packed:
            y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
            return y
        return F.linear(x, self.weight, self.bias)


def can_pack(weight: Tensor) -> bool:
    """Whether this weight is multiplied through oneDNN's packed form."""
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16:
        return False
    return bool(torch._C._has_mkldnn) and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
