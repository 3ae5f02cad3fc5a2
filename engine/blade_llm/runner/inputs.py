"""What a step plan says, packed into one copy to the device. The model's inputs are gathered there, out of the row
tables, where the tokens of the step before may only just have been drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from blade_llm.kernels.paged_attention import RaggedBatch
from blade_llm.runner.prompts import StepQuestions
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
    """[sampled, then what the questions ask] int64: the tokens whose hidden states are wanted; None for each one."""
    sampled: SampledRows
    copies: tuple[Tensor, Tensor] | None = None
    """Blocks to copy before anything is computed, and where to; [copies] int64 each."""
    questions: StepQuestions | None = None
    """What rows ask about their prompts."""
    targets: Tensor | None = None
    """[scored positions] int64: where the questions' tokens are."""

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
    for vector in (rows, starts, query_starts, seq_lens, sampled_rows, sampled_positions):
        staging.add(vector)
    tables.stage(plan, staging)
    questions: StepQuestions | None = None
    if tables.questions:
        questions = StepQuestions.of(plan, query_starts, tables.questions, tables.token_ids.shape[1])
    staging.add(selected if questions is None else np.concatenate([selected, questions.selected]))
    if questions is not None:
        staging.add(questions.targets)
    if plan.block_copies:
        staging.add([copy.source for copy in plan.block_copies])
        staging.add([copy.target for copy in plan.block_copies])
    sent = staging.send()
    rest = iter(sent[6:])
    tables.apply(plan, rest)
    wanted = next(rest)
    targets = None if questions is None else next(rest)
    copies = (next(rest), next(rest)) if plan.block_copies else None
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
        selected=None if questions is None and len(selected) == num_tokens else wanted,
        sampled=SampledRows(sampled_rows.tolist(), sampled_positions.tolist(), sent[4], sent[5]),
        questions=questions,
        targets=targets,
        copies=copies,
    )
