"""Layer normalisation in plain torch."""

import torch.nn.functional as F
from torch import Tensor


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    wide = None if bias is None else bias.float()
    return F.layer_norm(x.float(), weight.shape, weight.float(), wide, eps).to(x.dtype)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    total = x.add_(residual)
    return layer_norm(total, weight, bias, eps), total
