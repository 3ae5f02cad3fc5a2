"""What the runner remembers of each live request: its tokens and its block table, in one row of persistent tables."""

from __future__ import annotations

import torch

from blade_llm.sampling.table import SamplingTable
from blade_llm.sampling.transfer import to_device
from blade_llm.scheduling.plan import StepPlan


class RowTables:
    """Tables on the device with one row a request; a step changes only what its plan says changed."""

    def __init__(self, max_num_seqs: int, max_model_len: int, max_blocks_per_row: int, device: torch.device) -> None:
        self.token_ids = torch.zeros(max_num_seqs, max_model_len + 1, dtype=torch.int32, device=device)
        """Prompt and output. One column more than the longest request: the last token drawn is never computed."""
        self.block_table = torch.zeros(max_num_seqs, max_blocks_per_row, dtype=torch.int32, device=device)
        self.sampling = SamplingTable(max_num_seqs, device)

    def apply(self, plan: StepPlan) -> None:
        """Free rows, fill new ones, append blocks, in this order."""
        for row in plan.freed_rows:
            self.sampling.leave(row)
        device = self.token_ids.device
        for new in plan.new_rows:
            self.token_ids[new.row, : len(new.token_ids)] = to_device(new.token_ids, device, torch.int32)
            self.sampling.enter(
                new.row,
                new.sampling,
                num_prompt_tokens=new.num_prompt_tokens,
                sample_index=new.sample_index,
                masked_until_min_tokens=new.masked_until_min_tokens,
            )
        if not plan.block_updates:
            return
        width = self.block_table.shape[1]
        where = [u.row * width + u.start + i for u in plan.block_updates for i in range(len(u.blocks))]
        blocks = [block for update in plan.block_updates for block in update.blocks]
        pairs = to_device([where, blocks], device)
        self.block_table.view(-1).index_copy_(0, pairs[0], pairs[1].to(torch.int32))
