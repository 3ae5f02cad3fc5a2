"""What a step plan says, packed into one copy to the device. The model's inputs are gathered there, out of the row
tables, where the tokens of the step before may only just have been drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from blade_llm.kernels.paged_attention import RaggedBatch
from blade_llm.runner.staging import Staging
from blade_llm.runner.tables import RowTables
from blade_llm.sampling.sampler import SampledRows
from blade_llm.scheduling.plan import StepPlan


@dataclass(frozen=True, slots=True)
class StepInputs:
    """A step, known to host and device; the tables hold all that the plan brought."""

    batch: RaggedBatch
    starts: Tensor
    """[sequences] int64: the first new position of each."""
    num_tokens: int
    selected: Tensor | None
    """[sampled] int64: the tokens whose logits are wanted; None for every one."""
    sampled: SampledRows
    copies: tuple[Tensor, Tensor] | None = None
    """Blocks to copy before anything is computed, and where to; [copies] int64 each."""

    @property
    def decodes_only(self) -> bool:
        """Whether each sequence has one new token."""
        return self.num_tokens == len(self.batch.host_query_lens)


def send_inputs(plan: StepPlan, tables: RowTables) -> StepInputs:
    """Carry ``plan`` to the device in one copy and apply its changes to ``tables``."""
    shares = plan.rows
    rows = np.array([share.row for share in shares])
    starts = np.array([share.start for share in shares])
    counts = np.array([share.count for share in shares])
    seq_lens = starts + counts
    query_starts = np.empty(len(shares) + 1, dtype=np.int64)
    query_starts[0] = 0
    counts.cumsum(out=query_starts[1:])
    num_tokens = int(query_starts[-1])
    draws = np.array([share.sample for share in shares])
    if draws.all():
        sampled_rows, sampled_positions, selected = rows, seq_lens, query_starts[1:] - 1
    else:
        sampled_rows, sampled_positions, selected = rows[draws], seq_lens[draws], query_starts[1:][draws] - 1

    staging = Staging(tables.token_ids.device)
    for vector in (rows, starts, query_starts, seq_lens, sampled_rows, sampled_positions, selected):
        staging.add(vector)
    tables.stage(plan, staging)
    if plan.block_copies:
        staging.add([copy.source for copy in plan.block_copies])
        staging.add([copy.target for copy in plan.block_copies])
    sent = staging.send()
    rest = iter(sent[7:])
    tables.apply(plan, rest)
    return StepInputs(
        batch=RaggedBatch(
            rows=sent[0],
            query_starts=sent[2],
            seq_lens=sent[3],
            host_query_lens=counts.tolist(),
            host_seq_lens=seq_lens.tolist(),
        ),
        starts=sent[1],
        num_tokens=num_tokens,
        selected=None if len(selected) == num_tokens else sent[6],
        sampled=SampledRows(sampled_rows.tolist(), sampled_positions.tolist(), sent[4], sent[5]),
        copies=(next(rest), next(rest)) if plan.block_copies else None,
    )
