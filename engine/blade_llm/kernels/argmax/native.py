"""Argmax in C++ (``native.cpp``)."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from blade_llm.kernels.argmax import torch as _reference
from blade_llm.kernels.native.functions import IS_BF16, bind
from blade_llm.kernels.penalties.masks import RowMasks


def argmax(logits: Tensor) -> Tensor:
    is_bf16 = IS_BF16.get(logits.dtype)
    rows, vocabulary = logits.shape
    if is_bf16 is None or logits.stride(1) != 1 or vocabulary == 0:
        return _reference.argmax(logits)
    out = torch.empty(rows, dtype=torch.int64)
    _argmax()(is_bf16, logits.data_ptr(), logits.stride(0), rows, vocabulary, None, None, out.data_ptr())
    return out


def masked_argmax(logits: Tensor, masks: RowMasks) -> Tensor | None:
    is_bf16 = IS_BF16.get(logits.dtype)
    rows, vocabulary = logits.shape
    if is_bf16 is None or logits.stride(1) != 1:
        return None
    index, words = masks.index.contiguous(), masks.words.contiguous()
    out = torch.empty(rows, dtype=torch.int64)
    _argmax()(
        is_bf16,
        logits.data_ptr(),
        logits.stride(0),
        rows,
        vocabulary,
        index.data_ptr(),
        words.data_ptr(),
        out.data_ptr(),
    )
    return out


@cache
def _argmax() -> Any:
    return bind("argmax", "ipnnnppp")
