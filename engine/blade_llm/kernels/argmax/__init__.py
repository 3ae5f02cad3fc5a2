"""Greedy decoding's draw: each row's largest logit."""

from torch import Tensor

from blade_llm.kernels.argmax import torch as _reference
from blade_llm.kernels.backend import backend_of


def argmax(logits: Tensor) -> Tensor:
    """Index of each row's largest element, the lowest among equals.

    ``logits``: [rows, vocabulary]. Returns [rows] int64; for a row with NaN some index, so that one broken row does
    not stop the others.
    """
    if backend_of(logits) == "native":
        from blade_llm.kernels.argmax import native

        return native.argmax(logits)
    return _reference.argmax(logits)
