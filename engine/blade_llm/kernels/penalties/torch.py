"""Penalties, bias and mask in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

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
    result = logits.to(torch.float32, copy=True)
    neutral = penalties.new_tensor([1.0, 0.0, 0.0])
    touched = (penalties != neutral).any(-1).nonzero().squeeze(1)
    if len(touched):
        rows, num_prompt_tokens, lengths = rows[touched], num_prompt_tokens[touched], lengths[touched]
        tokens = token_table[rows, : int(lengths.max())].long()
        result[touched] = _penalised(result[touched], tokens, num_prompt_tokens, lengths, penalties[touched])
    if bias is not None:
        counts = bias.starts.diff()
        biased = torch.arange(len(counts), device=logits.device).repeat_interleave(counts)
        result.index_put_((biased, bias.tokens), bias.values.float(), accumulate=True)
    if masks is not None:
        bits = torch.arange(32, dtype=torch.int32, device=logits.device)
        masked = (masks.index >= 0).nonzero().squeeze(1)
        words = masks.words[masks.index[masked]]
        forbidden = (words.unsqueeze(-1) >> bits & 1).flatten(1)[:, : logits.shape[1]] == 0
        result[masked] = result[masked].masked_fill(forbidden, float("-inf"))
    return result


def _penalised(logits: Tensor, tokens: Tensor, num_prompt_tokens: Tensor, lengths: Tensor, penalties: Tensor) -> Tensor:
    """``tokens``: [rows, longest] int64, the rows' own."""
    repetition, presence, frequency = penalties.unsqueeze(1).unbind(-1)
    columns = torch.arange(tokens.shape[1], device=tokens.device)
    present = columns < lengths.unsqueeze(1)
    output = present & (columns >= num_prompt_tokens.unsqueeze(1))
    tokens = tokens.where(present, 0)
    seen = torch.zeros_like(logits).scatter_add_(1, tokens, present.to(logits.dtype)) > 0
    counts = torch.zeros_like(logits).scatter_add_(1, tokens, output.to(logits.dtype))
    logits = torch.where(seen, torch.where(logits > 0, logits / repetition, logits * repetition), logits)
    logits -= counts * frequency
    logits -= (counts > 0) * presence
    return logits
