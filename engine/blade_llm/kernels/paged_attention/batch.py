"""The ragged batch of a step, as attention takes it: on the device for kernels, on the host for what decides their
form."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """Which sequences a step computes, their tokens packed one sequence after another."""

    slots: Tensor
    """[sequences] int64: each one's slot of the block table."""
    query_starts: Tensor
    """[sequences + 1] int64: where each one's new tokens begin among the step's, and their number at the end."""
    seq_lens: Tensor
    """[sequences] int64: tokens of each sequence once the new ones are in the cache; the new ones are the last."""
    host_query_lens: list[int]
    """New tokens of each sequence, at least 1; known without a copy from the device."""
    host_seq_lens: list[int]
    """The same as ``seq_lens``."""
    decodes: Tensor | None = None
    """[1] int64: leading sequences with one new token each. Given where a CUDA graph serves steps of many shapes: then
    the lengths on the host are empty lists, sequences at the end may have no new tokens, and the step more tokens than
    sequences name, for which attention is zero."""
    shorts: Tensor | None = None
    """[1] int64: sequences behind ``decodes`` that have few new tokens each (:func:`most_split_queries`). Given where a
    graph serves such steps: their contexts are divided, as those of decodes are."""
    divided: bool = False
    """Whether they are where the host knows the lengths: steps that verify drafts."""
    tree: Tensor | None = None
    """[tokens, 3] int64, where the new tokens of some sequence branch (tree attention: Miao et al., SpecInfer, arXiv
    2305.09781). Two words of bits: the new tokens of its sequence that each token sees, itself included, the first in
    the lowest bit of the first word; all set (-1) for those of a sequence without branches. Then how many places
    further back its position is than its place in the sequence; 0 there."""

    @classmethod
    def of(cls, slots: Tensor, query_lens: list[int], seq_lens: list[int]) -> RaggedBatch:
        """Build one from what the host knows."""
        starts = slots.new_tensor([0, *itertools.accumulate(query_lens)])
        return cls(slots, starts, slots.new_tensor(seq_lens), query_lens, seq_lens)

    def sequences(self, num_tokens: int) -> Tensor:
        """[num_tokens] int64: the sequence of each token of the step; tokens after the last sequence, as in a graph
        that is padded, are the last one's. Depends on nothing but device memory."""
        tokens = torch.arange(num_tokens, device=self.slots.device)
        return torch.searchsorted(self.query_starts[1:-1], tokens, right=True)
