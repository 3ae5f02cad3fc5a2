"""What a draft model computes in a step, sent to the device in one copy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from blade_llm.kernels.paged_attention import RaggedBatch
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


def send_draft_inputs(plan: StepPlan, device: torch.device) -> DraftInputs:
    """The draft chunks of ``plan``, on the device."""
    wanted = {chunk.slot: chunk.num_draft_tokens for chunk in plan.chunks if chunk.num_draft_tokens}
    chunks = sorted(plan.draft_chunks, key=lambda chunk: -wanted.get(chunk.slot, 0))
    lengths = np.array([chunk.count for chunk in chunks])
    slots = np.array([chunk.slot for chunk in chunks])
    starts = np.array([chunk.start for chunk in chunks])
    drafts = np.array([wanted.get(chunk.slot, 0) for chunk in chunks])
    query_starts = np.concatenate([[0], lengths.cumsum()])
    ends = starts + lengths
    sent = all_to_device([slots, starts, query_starts, ends, query_starts[1:] - 1], device)
    counts = [int((drafts > step).sum()) for step in range(int(drafts.max()))]
    drafting = counts[0] if counts else 0
    return DraftInputs(
        batch=RaggedBatch(sent[0], sent[2], sent[3], lengths.tolist(), ends.tolist()),
        starts=sent[1],
        num_tokens=int(query_starts[-1]),
        selected=sent[4][: max(drafting, 1)],
        drafting_slots=slots[:drafting].tolist(),
        counts=counts,
    )
