"""What the runner remembers of each live request: its tokens and its block table, in one row of persistent tables."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor

from blade_llm.runner.prompts import PromptQuestion
from blade_llm.runner.staging import Staging
from blade_llm.sampling.table import SamplingTable
from blade_llm.scheduling.plan import StepPlan


class RowTables:
    """Tables on the device with one row a request; a step changes only what its plan says changed.

    The row after the last, :attr:`padding_row`, belongs to no request. Its block table names the block after the last,
    which is never given out: whatever pads a batch to the size of a CUDA graph reads and writes there.
    """

    def __init__(
        self, max_num_seqs: int, max_model_len: int, max_blocks_per_row: int, num_blocks: int, device: torch.device
    ) -> None:
        self.padding_row = max_num_seqs
        self.token_ids = torch.zeros(max_num_seqs + 1, max_model_len + 1, dtype=torch.int32, device=device)
        """Prompt and output. One column more than the longest request: the last token drawn is never computed."""
        self.block_table = torch.zeros(max_num_seqs + 1, max_blocks_per_row, dtype=torch.int32, device=device)
        self.block_table[self.padding_row] = num_blocks
        self.sampling = SamplingTable(max_num_seqs, device)
        self.questions: dict[int, PromptQuestion] = {}
        """What rows ask about their prompts; most ask nothing."""

    def leave(self, row: int) -> None:
        """The request in ``row`` ended."""
        self.sampling.leave(row)
        self.questions.pop(row, None)

    def stage(self, plan: StepPlan, staging: Staging) -> None:
        """Note on the host what changes, and add what the device has to know of it: four vectors, then two more where
        tokens change."""
        for row in plan.freed_rows:
            self.leave(row)
        for new in plan.new_rows:
            self.questions.pop(new.row, None)
            question = PromptQuestion.of(new)
            if question is not None:
                self.questions[new.row] = question
        words = [
            self.sampling.record(
                new.row,
                new.sampling,
                num_prompt_tokens=new.num_prompt_tokens,
                sample_index=new.sample_index,
                masked_until_min_tokens=new.masked_until_min_tokens,
            )
            for new in plan.new_rows
        ]
        staging.add(list(chain.from_iterable(words)))
        staging.add(list(chain.from_iterable(new.token_ids for new in plan.new_rows)))
        width = self.block_table.shape[1]
        staging.add([u.row * width + u.start + i for u in plan.block_updates for i in range(len(u.blocks))])
        staging.add(list(chain.from_iterable(update.blocks for update in plan.block_updates)))
        if plan.token_updates:
            width = self.token_ids.shape[1]
            staging.add([u.row * width + u.start + i for u in plan.token_updates for i in range(len(u.tokens))])
            staging.add(list(chain.from_iterable(update.tokens for update in plan.token_updates)))

    def apply(self, plan: StepPlan, sent: Iterator[Tensor]) -> None:
        """Fill new rows, append blocks and write tokens, with what :meth:`stage` added, now on the device."""
        words, tokens, where, blocks = (next(sent) for _ in range(4))
        begin = 0
        for new in plan.new_rows:
            end = begin + len(new.token_ids)
            self.token_ids[new.row, : end - begin] = tokens[begin:end]
            begin = end
        if plan.new_rows:
            self.sampling.enter_recorded(words)
        if plan.block_updates:
            self.block_table.view(-1).index_copy_(0, where, blocks.to(torch.int32))
        if plan.token_updates:
            self.token_ids.view(-1).index_copy_(0, next(sent), next(sent).to(torch.int32))
