"""Greedy sampling: each row's largest logit."""

from torch import Tensor

from blade_llm.kernels.argmax import torch as _reference
from blade_llm.kernels.backend import backend_of
from blade_llm.kernels.penalties.masks import RowMasks


def argmax(logits: Tensor) -> Tensor:
    """Index of each row's largest element, the lowest among equals.

    ``logits``: [rows, vocabulary]. Returns [rows] int64; for a row with NaN the place of the first, so that one
    broken row is noticed and does not stop the others.
    """
    if backend_of(logits) == "native":
        from blade_llm.kernels.argmax import native

        return native.argmax(logits)
    return _reference.argmax(logits)


def masked_argmax(logits: Tensor, masks: RowMasks) -> Tensor | None:
    """As :func:`argmax`, among the tokens that ``masks`` allows; those it forbids are not even read.

    None where there is no such operator: the logits are to be masked first. A row of which nothing is allowed gets 0.
    """
    if backend_of(logits) == "native":
        from blade_llm.kernels.argmax import native

        return native.masked_argmax(logits, masks)
    return None
