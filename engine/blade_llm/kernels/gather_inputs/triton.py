"""The gather of a step's inputs in Triton: each token finds its sequence by binary search, so that one launch serves
any mixture of prefills and decodes without the host's help."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 128
_INDICES = ["slots_ptr", "starts_ptr", "query_starts_ptr"]
"""Often parts of one packed transfer, and so aligned by chance: no reason to compile another variant."""


@triton.jit(
    do_not_specialize=["num_tokens", "num_sequences", "steps"],
    do_not_specialize_on_alignment=[*_INDICES, "token_ids_ptr", "positions_ptr", "slot_mapping_ptr"],
)
def _gather_inputs_kernel(
    slots_ptr,
    starts_ptr,
    query_starts_ptr,
    token_table_ptr,
    block_table_ptr,
    token_ids_ptr,
    positions_ptr,
    slot_mapping_ptr,
    num_tokens,
    num_sequences,
    steps,
    TOKEN_STRIDE: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    tokens = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = tokens < num_tokens
    # The last sequence that begins at or before the token.
    low = tl.zeros([BLOCK], tl.int32)
    high = tl.full([BLOCK], 0, tl.int32) + num_sequences
    for _ in range(steps):
        middle = (low + high) // 2
        begins = tl.load(query_starts_ptr + middle, inside, 0)
        before = begins <= tokens
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle)
    position = tl.load(starts_ptr + low, inside, 0) + tokens - tl.load(query_starts_ptr + low, inside, 0)
    position = tl.where(tokens < tl.load(query_starts_ptr + num_sequences), position, 0)  # else it is padding
    slot = tl.load(slots_ptr + low, inside, 0)
    token = tl.load(token_table_ptr + slot * TOKEN_STRIDE + position, inside, 0)
    block = tl.load(block_table_ptr + slot * BLOCK_STRIDE + position // BLOCK_SIZE, inside, 0).to(tl.int64)
    tl.store(token_ids_ptr + tokens, token, inside)
    tl.store(positions_ptr + tokens, position, inside)
    tl.store(slot_mapping_ptr + tokens, block * BLOCK_SIZE + position % BLOCK_SIZE, inside)


def gather_inputs(
    slots: Tensor,
    starts: Tensor,
    query_starts: Tensor,
    token_table: Tensor,
    block_table: Tensor,
    block_size: int,
    num_tokens: int,
    out: tuple[Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    if out is None:
        device = slots.device
        positions, slot_mapping = torch.empty(2, num_tokens, dtype=torch.int64, device=device)
        out = torch.empty(num_tokens, dtype=torch.int32, device=device), positions, slot_mapping
    sequences = len(slots)
    _gather_inputs_kernel[(triton.cdiv(num_tokens, _BLOCK),)](
        slots,
        starts,
        query_starts,
        token_table,
        block_table,
        *out,
        num_tokens,
        sequences,
        sequences.bit_length(),
        TOKEN_STRIDE=token_table.stride(0),
        BLOCK_STRIDE=block_table.stride(0),
        BLOCK_SIZE=block_size,
        BLOCK=_BLOCK,
        num_warps=4,
    )
    return out
