"""Penalties, bias and mask in C++ (``native.cpp``)."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from blade_llm.kernels.native.functions import IS_BF16, bind
from blade_llm.kernels.penalties import torch as _reference
from blade_llm.kernels.penalties.bias import SparseBias
from blade_llm.kernels.penalties.masks import RowMasks


def apply_penalties(
    logits: Tensor,
    token_table: Tensor,
    rows: Tensor,
    num_prompt_tokens: Tensor,
    lengths: Tensor,
    penalties: Tensor,
    bias: SparseBias | None = None,
    masks: RowMasks | None = None,
) -> Tensor:
    is_bf16 = IS_BF16.get(logits.dtype)
    if is_bf16 is None or token_table.stride(1) != 1:
        return _reference.apply_penalties(logits, token_table, rows, num_prompt_tokens, lengths, penalties, bias, masks)
    # Named, so that what was made contiguous lives as long as the call.
    logits, penalties = logits.contiguous(), penalties.contiguous()
    vectors = [vector.contiguous() for vector in (rows, num_prompt_tokens, lengths)]
    entries = [None] * 3 if bias is None else [bias.starts, bias.tokens, bias.values]
    bits = [None] * 2 if masks is None else [masks.index, masks.words.contiguous()]
    num_rows, vocabulary = logits.shape
    out = torch.empty(num_rows, vocabulary)
    _penalties()(
        is_bf16,
        logits.data_ptr(),
        num_rows,
        vocabulary,
        token_table.data_ptr(),
        token_table.stride(0),
        *(vector.data_ptr() for vector in vectors),
        penalties.data_ptr(),
        *(None if part is None else part.data_ptr() for part in (*entries, *bits)),
        out.data_ptr(),
    )
    return out


@cache
def _penalties() -> Any:
    return bind("penalties", "ipnnpnpppppppppp")
