"""The gather of a step's inputs in plain torch."""

import torch
from torch import Tensor


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
    tokens = torch.arange(num_tokens, device=slots.device)
    sequences = torch.searchsorted(query_starts[1:-1], tokens, right=True)
    positions = tokens + (starts - query_starts[:-1])[sequences]
    positions.masked_fill_(tokens >= query_starts[-1], 0)
    where = slots[sequences]
    slot_mapping = block_table[where, positions // block_size].long() * block_size + positions % block_size
    gathered = token_table[where, positions], positions, slot_mapping
    if out is None:
        return gathered
    for target, values in zip(out, gathered, strict=True):
        target.copy_(values)
    return out
