"""Sends a step plan to the device, packed into one copy. The model's inputs are gathered there, out of the slot
tables, where the tokens of the step before may only just have been sampled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from blade_llm.kernels.paged_attention import RaggedBatch
from blade_llm.runner.graphs.mixed import MixedGraphs
from blade_llm.runner.lora.adapters import RunnerAdapters
from blade_llm.runner.lora.step import StagedAdapters, StepAdapters
from blade_llm.runner.prompt_outputs import PromptOutputBatch
from blade_llm.runner.staging import Staging
from blade_llm.runner.tables import SlotTables
from blade_llm.runner.tree_inputs import NO_TREES, SentTrees, staged_trees
from blade_llm.sampling.sampler import SampledSlots
from blade_llm.scheduling.plan import StepPlan


@dataclass(frozen=True, slots=True)
class StepInputs:
    """A step, known to host and device; the tables hold all that the plan brought."""

    batch: RaggedBatch
    starts: Tensor
    """[sequences] int64: the first new position of each."""
    num_tokens: int
    selected: Tensor | None
    """[sampled, then prompt outputs] int64: the tokens whose hidden states are wanted; None for each one."""
    sampled: SampledSlots
    copies: tuple[Tensor, Tensor] | None = None
    """Blocks to copy before anything is computed, and where to; [copies] int64 each."""
    prompt_outputs: PromptOutputBatch | None = None
    """The prompt log-probabilities and pooled states that requests want."""
    targets: Tensor | None = None
    """[scored positions] int64: where the scored tokens are."""
    mixed: tuple[int, Tensor] | None = None
    """Of a mixed step that a graph holds: its number of tokens, and the step as the graph takes it."""
    adapters: StepAdapters | None = None
    """The tokens that use adapters; None: none does."""
    draft_counts: list[int] | None = None
    """Draft tokens of each chunk that samples, as far as sampling goes on after them; None: none has any."""
    trees: SentTrees = NO_TREES
    """Draft tokens that branch, and what is left to do for those of the step before."""

    @property
    def decodes_only(self) -> bool:
        """Whether each sequence has one new token."""
        return self.num_tokens == len(self.batch.host_query_lens)


def send_inputs(
    plan: StepPlan,
    tables: SlotTables,
    graphs: MixedGraphs | None = None,
    adapters: RunnerAdapters | None = None,
    graphs_with_adapters: MixedGraphs | None = None,
    *,
    launched: bool = False,
) -> StepInputs:
    """Carry ``plan`` to the device in one copy and apply its changes to ``tables`` and ``adapters``. ``graphs``: those
    of mixed steps without adapters; ``graphs_with_adapters``: those with; ``launched``: none holds this step, as one
    with image tokens.

    Nothing of images travels here. Their embeddings are on the device, and the step gets rows of them beside these
    inputs (:class:`~blade_llm.runner.vision.images.StepImages`). Positions on three axes are in a table that is written
    when a request enters its slot (:class:`~blade_llm.runner.vision.positions.AxisTable`), from which graphs gather as
    well: only image tokens themselves are not for graphs, which feed every row with its token's embedding.
    """
    chunks = plan.chunks
    slots = np.array([chunk.slot for chunk in chunks], dtype=np.int64)
    starts = np.array([chunk.start for chunk in chunks], dtype=np.int64)
    counts = np.array([chunk.count for chunk in chunks], dtype=np.int64)
    seq_lens = starts + counts
    query_starts = np.empty(len(chunks) + 1, dtype=np.int64)
    query_starts[0] = 0
    counts.cumsum(out=query_starts[1:])
    num_tokens = int(query_starts[-1])
    samples = np.array([chunk.sample for chunk in chunks], dtype=bool)
    drafts = np.array([chunk.num_draft_tokens for chunk in chunks]) if num_tokens > len(chunks) else None
    draft_counts: list[int] | None = None
    trees = staged_trees(plan, query_starts, tables.padding_slot)
    if trees is not None and trees.rows is not None:
        sampled_slots, sampled_positions, selected = trees.rows
        draft_counts = trees.counts
    elif drafts is not None and drafts.any():
        sampled_slots, sampled_positions, selected = _verified(slots, seq_lens, query_starts[1:], samples, drafts)
        draft_counts = drafts[samples].tolist()
    elif samples.all():
        sampled_slots, sampled_positions, selected = slots, seq_lens, query_starts[1:] - 1
    else:
        sampled_slots, sampled_positions, selected = slots[samples], seq_lens[samples], query_starts[1:][samples] - 1

    staging = Staging(tables.token_ids.device)
    for vector in (slots, starts, query_starts, seq_lens, sampled_slots, sampled_positions):
        staging.add(vector)
    tables.stage(plan, staging)
    prompt_outputs: PromptOutputBatch | None = None
    if tables.prompt_outputs:
        prompt_outputs = PromptOutputBatch.of(plan, query_starts, tables.prompt_outputs, tables.token_ids.shape[1])
    wanted_rows = selected if prompt_outputs is None else np.concatenate([selected, prompt_outputs.selected])
    of_adapters: StagedAdapters | None = None
    if adapters is not None:
        adapters.apply(plan)
        of_adapters = adapters.stage(slots, counts, wanted_rows, staging)
    if of_adapters is not None:
        graphs = graphs_with_adapters
    graph_size: int | None = None
    plain = prompt_outputs is None and not launched
    if graphs is not None and plain and num_tokens > len(chunks) and len(selected) <= graphs.most_selected:
        graph_size = graphs.size_for(num_tokens)
    staging.add(wanted_rows)
    if prompt_outputs is not None:
        staging.add(prompt_outputs.targets)
    if plan.block_copies:
        staging.add([copy.source for copy in plan.block_copies])
        staging.add([copy.target for copy in plan.block_copies])
    if trees is not None:
        trees.stage(staging, in_graph=graph_size is not None)
    if graphs is not None and graph_size is not None:
        decodes = int(np.argmax(counts > 1))
        shorts = 0 if draft_counts is None else _leading(counts[decodes:] <= tables.most_split_queries)
        tree = None if trees is None else trees.tree
        staging.add(graphs.pack(graph_size, slots, starts, query_starts[1:], seq_lens, selected, decodes, shorts, tree))
    sent = staging.send()
    rest = iter(sent[6:])
    tables.apply(plan, rest)
    of_step = None if of_adapters is None else of_adapters.take(rest)
    wanted = next(rest)
    targets = None if prompt_outputs is None else next(rest)
    copies = (next(rest), next(rest)) if plan.block_copies else None
    of_trees = NO_TREES if trees is None else trees.take(rest)
    mixed = None if graph_size is None else (graph_size, next(rest))
    return StepInputs(
        batch=RaggedBatch(
            slots=sent[0],
            query_starts=sent[2],
            seq_lens=sent[3],
            host_query_lens=counts.tolist(),
            host_seq_lens=seq_lens.tolist(),
            divided=draft_counts is not None,
            tree=of_trees.tree,
        ),
        starts=sent[1],
        num_tokens=num_tokens,
        selected=None if prompt_outputs is None and len(selected) == num_tokens else wanted,
        sampled=SampledSlots(sampled_slots.tolist(), sampled_positions.tolist(), sent[4], sent[5]),
        prompt_outputs=prompt_outputs,
        targets=targets,
        copies=copies,
        mixed=mixed,
        adapters=of_step,
        draft_counts=draft_counts,
        trees=of_trees,
    )


def _leading(holds: np.ndarray) -> int:
    """How many of ``holds`` are true before the first that is not."""
    return len(holds) if holds.all() else int(np.argmin(holds))


def _verified(
    slots: np.ndarray, seq_lens: np.ndarray, ends: np.ndarray, samples: np.ndarray, drafts: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Slots, positions and tokens of a step that samples behind each draft token, and before the first: [rows] int64
    each."""
    counts = drafts[samples] + 1
    back = np.repeat(counts.cumsum(), counts) - np.arange(counts.sum()) - 1  # tokens of the slot that follow
    return (
        np.repeat(slots[samples], counts),
        np.repeat(seq_lens[samples], counts) - back,
        np.repeat(ends[samples], counts) - 1 - back,
    )
