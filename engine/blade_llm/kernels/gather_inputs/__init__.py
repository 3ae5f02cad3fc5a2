"""A step's inputs, built on the device from the tables of the live requests: so the tokens of the step before can be
among them before the host has seen them."""

from torch import Tensor

from blade_llm.kernels.backend import backend_of
from blade_llm.kernels.gather_inputs import torch as _reference


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
    """Token ids, positions and slot mapping of a ragged batch, its sequences one after another.

    ``slots``, ``starts``: [sequences] int64, each one's slot of the tables and its first position. ``query_starts``:
    [sequences + 1] int64, where each one's tokens begin among the step's, and their number at the end; a sequence
    without tokens has only such behind it. Tokens beyond that number, up to ``num_tokens``, are padding: each is the
    first of the last sequence's slot. ``token_table``: [slots, length] int32; ``block_table``: [slots, blocks] int32.
    Returns [num_tokens] each: token ids int32, positions int64, slot_mapping (``block * block_size + offset``) int64;
    in ``out``, contiguous and of those shapes, when given.
    """
    arguments = slots, starts, query_starts, token_table, block_table, block_size, num_tokens, out
    if backend_of(token_table) == "triton":
        from blade_llm.kernels.gather_inputs import triton

        return triton.gather_inputs(*arguments)
    return _reference.gather_inputs(*arguments)
