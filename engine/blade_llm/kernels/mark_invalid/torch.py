"""The same in plain torch."""

from torch import Tensor


def mark_invalid(logits: Tensor, tokens: Tensor) -> Tensor:
    return tokens.masked_fill(logits.gather(1, tokens.unsqueeze(1)).squeeze(1).isnan(), -1)
