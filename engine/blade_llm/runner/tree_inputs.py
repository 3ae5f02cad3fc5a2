"""Steps with draft tokens that branch: what each token sees, which positions are sampled at, and the keys and values
that accepted ones of the step before left elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from torch import Tensor

from blade_llm.runner.staging import Staging
from blade_llm.scheduling.plan import DraftTree, StepPlan

_WORD: Final = (1 << 64) - 1
_PLAIN: Final = [-1, -1, 0]
Guesses = Mapping[int, tuple[DraftTree, list[int]]]
"""Index of a sampling chunk → its tree, and the draft tokens."""


@dataclass(frozen=True, slots=True)
class SentTrees:
    """Trees of a step, known to host and device."""

    tree: Tensor | None = None
    """[tokens, 3] int64: see :attr:`blade_llm.kernels.paged_attention.RaggedBatch.tree`; None: no tokens branch, or a
    graph has it."""
    written_slots: Tensor | None = None
    """[rows] int64: the slots whose tables get what is sampled, the padding slot for trees, of which the host knows
    first what was accepted; None: those that it is sampled for."""
    copies: tuple[Tensor, Tensor] | None = None
    """Cache slots to copy before anything else happens, and where to; [copies] int64 each."""
    guesses: Guesses = field(default_factory=dict)


NO_TREES: Final = SentTrees()


@dataclass(slots=True)
class StagedTrees:
    """Trees of a step on their way to the device. Vectors are int64."""

    plan: StepPlan
    rows: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    """Of each position that is sampled at its slot, the position that is sampled for, and the token before it among the
    step's, [rows] each; None: no tokens branch."""
    counts: list[int] = field(default_factory=list)
    """Rows of each sampling chunk but one."""
    guesses: dict[int, tuple[DraftTree, list[int]]] = field(default_factory=dict)
    written: np.ndarray | None = None
    tree: np.ndarray | None = None
    _in_graph: bool = False

    def stage(self, staging: Staging, *, in_graph: bool) -> None:
        """Add what the device has to know; ``in_graph``: a graph gets the tree with its own inputs."""
        self._in_graph = in_graph
        if self.plan.kv_copies:
            staging.add([copy.source for copy in self.plan.kv_copies])
            staging.add([copy.target for copy in self.plan.kv_copies])
        if self.written is not None and self.tree is not None:
            staging.add(self.written)
            if not in_graph:
                staging.add(self.tree.reshape(-1))

    def take(self, sent: Iterator[Tensor]) -> SentTrees:
        """Take from ``sent`` what was staged."""
        copies = (next(sent), next(sent)) if self.plan.kv_copies else None
        if self.tree is None:
            return SentTrees(copies=copies)
        written = next(sent)
        tree = None if self._in_graph else next(sent).view(-1, 3)
        return SentTrees(tree, written, copies, self.guesses)


def staged_trees(plan: StepPlan, query_starts: np.ndarray, padding_slot: int) -> StagedTrees | None:
    """None where no draft tokens branch, and none did in the step before. ``query_starts``: [chunks + 1], where the
    chunks' tokens begin."""
    if plan.kv_copies or (plan.token_updates and plan.has_trees):
        staged = StagedTrees(plan)
        if plan.has_trees:
            _add_rows(staged, query_starts, padding_slot)
        return staged
    return None


def _add_rows(staged: StagedTrees, query_starts: np.ndarray, padding_slot: int) -> None:
    plan, counts = staged.plan, staged.counts
    words: list[int] = []  # three of each token
    drafts = {(update.slot, update.start): update.tokens for update in plan.token_updates}
    slots: list[int] = []
    positions: list[int] = []
    selected: list[int] = []
    written: list[int] = []
    for chunk, first in zip(plan.chunks, query_starts.tolist(), strict=False):
        table, slot, start, tree = chunk.slot, chunk.slot, chunk.start, chunk.tree
        depths: Sequence[int]
        if tree is None:
            depths = range(chunk.count)
            sampled = list(range(chunk.count - 1 - chunk.num_draft_tokens, chunk.count))
            words += _PLAIN * chunk.count
        else:
            table = padding_slot
            depths = _add_tree(tree, words)
            sampled = [*range(1 + tree.num_guesses), *(end + 1 for end in tree.window_ends if end >= 0)]
            staged.guesses[len(counts)] = tree, drafts[slot, start + 1]
        if not chunk.sample:
            continue
        count = len(sampled)
        counts.append(count - 1)
        slots += [slot] * count
        written += [table] * count
        positions += [start + 1 + depths[index] for index in sampled]
        selected += [first + index for index in sampled]
    rows = np.array((slots, positions, selected, written), dtype=np.int64)
    staged.rows = rows[0], rows[1], rows[2]
    staged.written = rows[3]
    staged.tree = np.array(words, dtype=np.int64).reshape(-1, 3)


def _add_tree(tree: DraftTree, words: list[int]) -> list[int]:
    """Add three words of each token of a chunk, the last known one first; how far each is behind that."""
    seen, depths = [1], [0]
    few = len(tree.parents) < 63
    words += (1, 0, 0)
    for index, parent in enumerate(tree.parents, 1):
        bits, depth = seen[parent + 1] | 1 << index, depths[parent + 1] + 1
        seen.append(bits)
        depths.append(depth)
        words += (bits, 0, index - depth) if few else (_signed(bits & _WORD), _signed(bits >> 64), index - depth)
    return depths


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
