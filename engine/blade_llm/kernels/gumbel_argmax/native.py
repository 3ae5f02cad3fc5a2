"""Gumbel-max sampling in C++ (``native.cpp``): one pass, and the torch implementation for rows that it cannot
decide."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from blade_llm.kernels.gumbel_argmax import torch as _reference
from blade_llm.kernels.native.functions import bind


def gumbel_argmax(logits: Tensor, thresholds: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
    if logits.dtype != torch.float32:
        return _reference.gumbel_argmax(logits, thresholds, keys, positions)
    logits, thresholds, keys, positions = (t.contiguous() for t in (logits, thresholds, keys, positions))
    rows, vocabulary = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64)
    inputs = (tensor.data_ptr() for tensor in (logits, thresholds, keys, positions))
    if _sample()(*inputs, rows, vocabulary, tokens.data_ptr()):
        left = (tokens < 0).nonzero().squeeze(1)
        tokens[left] = _reference.gumbel_argmax(logits[left], thresholds[left], keys[left], positions[left])
    return tokens


@cache
def _sample() -> Any:
    return bind("gumbel_argmax", "ppppnnp", returns="n")
