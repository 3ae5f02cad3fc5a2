"""Penalties, bias and mask in Triton.

Each program owns a piece of one row's vocabulary: it counts the row's tokens that fall into its piece in a histogram,
so that nothing as large as the vocabulary is stored but the result, and adds the row's few biases to what it has just
written.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from blade_llm.kernels.penalties.bias import SparseBias
from blade_llm.kernels.penalties.masks import RowMasks

_PIECE = 1024
_BLOCK = 512
_BLOCK_BIAS = 64


@triton.jit(
    do_not_specialize_on_alignment=[
        "rows_ptr",
        "num_prompt_tokens_ptr",
        "lengths_ptr",
        "penalties_ptr",
        "bias_starts_ptr",
        "bias_tokens_ptr",
        "bias_values_ptr",
        "mask_index_ptr",
    ]
)
def _penalties_kernel(
    logits_ptr,
    token_table_ptr,
    rows_ptr,
    num_prompt_tokens_ptr,
    lengths_ptr,
    penalties_ptr,
    bias_starts_ptr,
    bias_tokens_ptr,
    bias_values_ptr,
    mask_index_ptr,
    mask_words_ptr,
    out_ptr,
    VOCABULARY: tl.constexpr,
    TOKEN_STRIDE: tl.constexpr,
    MASK_WORDS: tl.constexpr,
    BIASED: tl.constexpr,
    MASKED: tl.constexpr,
    PIECE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_BIAS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    begin = tl.program_id(1) * PIECE
    vocabulary = begin + tl.arange(0, PIECE)
    inside = vocabulary < VOCABULARY
    logits = tl.load(logits_ptr + row * VOCABULARY + vocabulary, inside, 0.0).to(tl.float32)

    repetition = tl.load(penalties_ptr + row * 3)
    presence = tl.load(penalties_ptr + row * 3 + 1)
    frequency = tl.load(penalties_ptr + row * 3 + 2)
    if (repetition != 1.0) | (presence != 0.0) | (frequency != 0.0):
        length = tl.load(lengths_ptr + row).to(tl.int32)
        prompt = tl.load(num_prompt_tokens_ptr + row).to(tl.int32)
        tokens_ptr = token_table_ptr + tl.load(rows_ptr + row) * TOKEN_STRIDE
        seen = tl.zeros([PIECE], tl.int32)
        counts = tl.zeros([PIECE], tl.int32)
        for start in range(0, length, BLOCK):
            column = start + tl.arange(0, BLOCK)
            token = tl.load(tokens_ptr + column, column < length, -1) - begin
            here = (column < length) & (token >= 0) & (token < PIECE)
            token = tl.where(here, token, 0)
            if repetition != 1.0:
                seen += tl.histogram(token, PIECE, mask=here)
            if start + BLOCK > prompt:
                counts += tl.histogram(token, PIECE, mask=here & (column >= prompt))
        repeated = tl.where(logits > 0, tl.div_rn(logits, repetition), logits * repetition)
        logits = tl.where(seen > 0, repeated, logits)
        logits -= counts.to(tl.float32) * frequency
        logits -= tl.where(counts > 0, presence, 0.0)

    if MASKED:
        mask = tl.load(mask_index_ptr + row)
        if mask >= 0:
            word = tl.load(mask_words_ptr + mask * MASK_WORDS + vocabulary // 32, inside, 0)
            logits = tl.where((word >> (vocabulary % 32)) & 1 == 1, logits, float("-inf"))
    tl.store(out_ptr + row * VOCABULARY + vocabulary, logits, inside)

    if BIASED:
        first = tl.load(bias_starts_ptr + row).to(tl.int32)
        end = tl.load(bias_starts_ptr + row + 1).to(tl.int32)
        if first < end:
            tl.debug_barrier()  # the piece is written
            for start in range(first, end, BLOCK_BIAS):
                entry = start + tl.arange(0, BLOCK_BIAS)
                token = tl.load(bias_tokens_ptr + entry, entry < end, -1).to(tl.int32)
                here = (token >= begin) & (token < begin + PIECE) & (token < VOCABULARY)
                value = tl.load(bias_values_ptr + entry, here, 0.0).to(tl.float32)
                at = out_ptr + row * VOCABULARY + token
                tl.store(at, tl.load(at, here, 0.0) + value, here)


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
    num_rows, vocabulary = logits.shape
    out = torch.empty(num_rows, vocabulary, dtype=torch.float32, device=logits.device)
    if not num_rows:
        return out
    _penalties_kernel[(num_rows, triton.cdiv(vocabulary, _PIECE))](
        logits.contiguous(),
        token_table,
        rows,
        num_prompt_tokens.contiguous(),
        lengths,
        penalties.contiguous(),
        rows if bias is None else bias.starts,
        rows if bias is None else bias.tokens,
        rows if bias is None else bias.values,
        rows if masks is None else masks.index,
        rows if masks is None else masks.words,
        out,
        VOCABULARY=vocabulary,
        TOKEN_STRIDE=token_table.stride(0),
        MASK_WORDS=-(-vocabulary // 32),
        BIASED=bias is not None,
        MASKED=masks is not None,
        PIECE=_PIECE,
        BLOCK=_BLOCK,
        BLOCK_BIAS=_BLOCK_BIAS,
        num_warps=8,
        enable_fp_fusion=False,  # rounds like the reference
    )
    return out
