"""Finds the rows of logits that are no numbers, at the price of one element each: of such a row every sampler takes a
token whose own logit is NaN."""

from torch import Tensor

from blade_llm.kernels.backend import backend_of
from blade_llm.kernels.mark_invalid import torch as _reference


def mark_invalid(logits: Tensor, tokens: Tensor) -> Tensor:
    """The sampled ``tokens`` ([rows] int64), with -1 where the token's own logit is NaN.

    ``logits``: [rows, vocabulary] of any float type, as the model made them.
    """
    if backend_of(logits) == "triton":
        from blade_llm.kernels.mark_invalid import triton

        return triton.mark_invalid(logits, tokens)
    return _reference.mark_invalid(logits, tokens)
