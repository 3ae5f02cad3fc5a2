"""Mixed steps as CUDA graphs: prefill chunks, forced tokens and decodes together, in any mixture.

One graph serves all steps up to a number of tokens. Its launches are made for that many tokens in as many sequences as
there can be; which sequence a token belongs to, how many decodes lead, where everything lies, the kernels find on the
device when they run. All of that is one small static tensor: a step overwrites it in one copy.

A step is padded with sequences that have no tokens, and with tokens that belong to none of them: those are computed at
position 0 of a slot that no request has, attend to nothing, and are thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from blade_llm.kernels.paged_attention import RaggedBatch
from blade_llm.runner.graphs.decode import GraphBackend, SizedGraphs
from blade_llm.scheduling.budget.step_cost import PADDED_FOR_NOTHING, replayed_size
from blade_llm.scheduling.drafting import most_sampled

LARGEST: Final = 2048
"""Tokens. Above, a step computes long enough to hide its launches."""
Forward = Callable[[RaggedBatch, Tensor, int, Tensor], Tensor]
"""A step on the device: its sequences, their first positions, the number of tokens, and the tokens to select; hidden
states of these, [selected, hidden]."""


def graph_token_sizes(sizes: Sequence[int] | None, largest: int | None, max_batch_tokens: int) -> list[int]:
    """The numbers of tokens to capture mixed steps of, ascending.

    ``sizes`` (``--cuda_graph_token_sizes``) wins over ``largest`` (``--cuda_graph_max_tokens``, itself captured; 0: no
    sizes). No size exceeds ``max_batch_tokens``: a listed one that does is captured as that.
    """
    if sizes is not None:
        return sorted({min(size, max_batch_tokens) for size in sizes})
    limit = min(max_batch_tokens, LARGEST if largest is None else largest)
    usual, size = [], 16  # from some size on four for each doubling: padding stays below a quarter
    while size < limit:
        usual.append(size)
        size += size if size < PADDED_FOR_NOTHING else 1 << (size.bit_length() - 3)
    return [*usual, limit] if limit else []


class MixedGraphs(SizedGraphs):
    """The graphs of mixed steps, one for each number of tokens, and the padding of steps in between."""

    log_name = "graph_num_tokens"

    def __init__(
        self,
        forward: Forward,
        sizes: Sequence[int],
        max_num_seqs: int,
        padding_slot: int,
        device: torch.device,
        backend: GraphBackend,
        verifies: bool = False,
        branches: bool = False,
    ) -> None:
        """``sizes``: tokens, ascending. ``padding_slot``: the slot of what fills a step up. ``verifies``: steps may
        have draft tokens, and select several tokens of a sequence; ``branches``: draft tokens that branch."""
        super().__init__(sizes, backend)
        self._forward = forward
        self._max_num_seqs = max_num_seqs
        self._padding_slot = padding_slot
        self._verifies = verifies
        self.branches = branches
        self.most_selected = most_sampled(max_num_seqs) if verifies else max_num_seqs
        nobody = np.empty(0, dtype=np.int64)
        self._inputs = {
            size: torch.from_numpy(self.pack(size, nobody, nobody, nobody[:0], nobody, nobody, 0)).to(device)
            for size in self.sizes
        }

    def size_for(self, number: int) -> int | None:
        """The captured size that a step of ``number`` tokens replays; None where it is to be launched."""
        return replayed_size(self._captured, number)

    def pack(
        self,
        size: int,
        slots: np.ndarray,
        starts: np.ndarray,
        ends: np.ndarray,
        seq_lens: np.ndarray,
        selected: np.ndarray,
        decodes: int,
        shorts: int = 0,
        tree: np.ndarray | None = None,
    ) -> np.ndarray:
        """A step as the graph of ``size`` tokens takes it, on the host: [inputs] int64.

        ``slots``, ``starts``, ``seq_lens``: [sequences]; ``ends``: [sequences], where each one's tokens end among the
        step's; ``selected``: [selected], the tokens whose hidden states are wanted, at most one a sequence, or as many
        as ``most_selected``; ``decodes``: leading sequences of one token; ``shorts``: those of few tokens behind them;
        ``tree``: [tokens, 3], as :class:`RaggedBatch` has it.
        """
        count = len(slots)
        packed = np.zeros((6, self._width(size)), dtype=np.int64)
        packed[0] = self._padding_slot
        packed[0, :count] = slots
        packed[1, :count] = starts
        packed[2, 1 : count + 1] = ends
        packed[2, count + 1 :] = ends[-1] if count else 0
        packed[3, :count] = seq_lens
        packed[4, : len(selected)] = selected
        packed[5, :2] = decodes, shorts
        if not self.branches:
            return packed.reshape(-1)
        branching = np.full((size, 3), (-1, -1, 0), dtype=np.int64)
        if tree is not None:
            branching[: len(tree)] = tree
        return np.concatenate((packed.reshape(-1), branching.reshape(-1)))

    def compute(self, size: int, packed: Tensor) -> Tensor:
        """Hidden states of a step that :meth:`pack` packed, [selected, then rows of no meaning, hidden].

        They are overwritten by the next step of the same size: whatever reads them must be launched before.
        """
        self._inputs[size].copy_(packed)
        return self._replay(size)

    def _sequences(self, size: int) -> int:
        """Sequences in the graph of ``size`` tokens. The last is always padding, whose slot the padding tokens get."""
        return min(size, self._max_num_seqs) + 1

    def _selected(self, size: int) -> int:
        """Tokens whose hidden states the graph of ``size`` tokens has."""
        return min(size, self.most_selected)

    def _width(self, size: int) -> int:
        return max(self._sequences(size) + 1, self._selected(size))

    def _run(self, size: int) -> Tensor:
        sequences = self._sequences(size)
        vectors = 6 * self._width(size)
        slots, starts, query_starts, seq_lens, selected, counts = self._inputs[size][:vectors].view(6, -1)
        batch = RaggedBatch(
            slots[:sequences],
            query_starts[: sequences + 1],
            seq_lens[:sequences],
            [],
            [],
            decodes=counts[:1],
            shorts=counts[1:2] if self._verifies else None,
            tree=self._inputs[size][vectors:].view(-1, 3) if self.branches else None,
        )
        return self._forward(batch, starts[:sequences], size, selected[: self._selected(size)])
