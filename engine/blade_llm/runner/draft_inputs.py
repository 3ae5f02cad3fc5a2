"""What a draft model computes in a step, sent to the device in one copy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from blade_llm.kernels.paged_attention import RaggedBatch
from blade_llm.runner.graphs.mixed import MixedGraphs
from blade_llm.sampling.transfer import all_to_device
from blade_llm.scheduling.plan import StepPlan


@dataclass(frozen=True, slots=True)
class DraftInputs:
    """The first forward pass of a draft. Sequences that draft come first, those with most draft tokens before others:
    those of each further step are a prefix."""

    batch: RaggedBatch
    starts: Tensor
    """[sequences] int64: the first new position of each."""
    num_tokens: int
    selected: Tensor
    """[sequences that draft, or 1] int64: their last tokens."""
    drafting_slots: list[int]
    counts: list[int]
    """How many sequences draft a first token, a second one and so on; empty: none drafts."""
    replayed: tuple[int, Tensor] | None = None
    """Where a graph holds it: its number of tokens, and the pass as the graph takes it."""


def send_draft_inputs(
    plan: StepPlan, device: torch.device, graphs: MixedGraphs | None = None, most_split_queries: int = 1
) -> DraftInputs:
    """The draft chunks of ``plan``, on the device. ``graphs``: those of first passes; ``most_split_queries``: of the
    draft model's attention."""
    wanted = {chunk.slot: chunk.num_draft_tokens for chunk in plan.chunks if chunk.num_draft_tokens}
    chunks = sorted(plan.draft_chunks, key=lambda chunk: -wanted.get(chunk.slot, 0))
    lengths = np.array([chunk.count for chunk in chunks])
    slots = np.array([chunk.slot for chunk in chunks])
    starts = np.array([chunk.start for chunk in chunks])
    drafts = np.array([wanted.get(chunk.slot, 0) for chunk in chunks])
    query_starts = np.concatenate([[0], lengths.cumsum()])
    ends = starts + lengths
    counts = [int((drafts > step).sum()) for step in range(int(drafts.max()))]
    drafting = counts[0] if counts else 0
    selected = query_starts[1:] - 1
    vectors = [slots, starts, query_starts, ends, selected]
    size = None
    if graphs is not None and len(chunks) <= graphs.most_selected:
        size = graphs.size_for(int(query_starts[-1]))
    if graphs is not None and size is not None:
        shorts = int(np.argmin(np.append(lengths <= most_split_queries, False)))
        vectors.append(graphs.pack(size, slots, starts, query_starts[1:], ends, selected, 0, shorts))
    sent = all_to_device(vectors, device)
    return DraftInputs(
        batch=RaggedBatch(sent[0], sent[2], sent[3], lengths.tolist(), ends.tolist(), divided=True),
        starts=sent[1],
        num_tokens=int(query_starts[-1]),
        selected=sent[4][: max(drafting, 1)],
        drafting_slots=slots[:drafting].tolist(),
        counts=counts,
        replayed=None if size is None else (size, sent[5]),
    )
