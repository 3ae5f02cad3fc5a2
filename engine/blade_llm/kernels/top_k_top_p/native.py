"""The thresholds in C++ (``native.cpp``): selection instead of sorting."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from blade_llm.kernels.native.functions import bind
from blade_llm.kernels.top_k_top_p import torch as _reference


def top_k_top_p_thresholds(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor | None) -> Tensor:
    if logits.dtype != torch.float32 or logits.numel() == 0:
        return _reference.top_k_top_p_thresholds(logits, top_k, top_p, min_p)
    logits, top_k, top_p = logits.contiguous(), top_k.contiguous(), top_p.float().contiguous()
    rows, vocabulary = logits.shape
    thresholds = torch.empty(rows)
    inputs = logits.data_ptr(), top_k.data_ptr(), top_p.data_ptr()
    _filter()(*inputs, rows, vocabulary, thresholds.data_ptr())
    if min_p is not None:
        off = torch.zeros_like(top_k), torch.ones_like(top_p)
        thresholds = thresholds.maximum(_reference.top_k_top_p_thresholds(logits, *off, min_p))
    return thresholds


@cache
def _filter() -> Any:
    return bind("top_k_top_p", "pppnnp")
