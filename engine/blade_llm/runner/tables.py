"""The persistent tables: one slot for each live request, with its tokens and its block table."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor

from blade_llm.runner.prompt_outputs import PromptOutputRequest
from blade_llm.runner.staging import Staging
from blade_llm.sampling.table import SamplingTable
from blade_llm.scheduling.plan import StepPlan


class SlotTables:
    """Tables on the device with one slot a request; a step changes only what its plan says changed.

    The slot after the last, :attr:`padding_slot`, belongs to no request. Its block table names the block after the
    last, which is never given out: whatever pads a batch to the size of a CUDA graph reads and writes there.
    """

    def __init__(
        self, max_num_seqs: int, max_model_len: int, max_blocks_per_slot: int, num_blocks: int, device: torch.device
    ) -> None:
        self.padding_slot = max_num_seqs
        self.token_ids = torch.zeros(max_num_seqs + 1, max_model_len + 1, dtype=torch.int32, device=device)
        """Prompt and output. One column more than the longest request: the last sampled token is never computed."""
        self.block_table = torch.zeros(max_num_seqs + 1, max_blocks_per_slot, dtype=torch.int32, device=device)
        self.block_table[self.padding_slot] = num_blocks
        self.most_split_queries = 1
        """New tokens of a sequence that attention counts among the few; set by the runner."""
        self.sampling = SamplingTable(max_num_seqs, device)
        self.prompt_outputs: dict[int, PromptOutputRequest] = {}
        """The prompt outputs that requests want, by slot; most want none."""

    def free(self, slot: int) -> None:
        """Forget the request in ``slot``, which has ended."""
        self.sampling.free(slot)
        self.prompt_outputs.pop(slot, None)

    def stage(self, plan: StepPlan, staging: Staging) -> None:
        """Record on the host what changes, and add what the device has to know of it: four vectors, then two more where
        tokens change."""
        for slot in plan.freed_slots:
            self.free(slot)
        for new in plan.new_requests:
            self.prompt_outputs.pop(new.slot, None)
            wanted = PromptOutputRequest.of(new)
            if wanted is not None:
                self.prompt_outputs[new.slot] = wanted
        words = [
            self.sampling.record(
                new.slot,
                new.sampling,
                num_prompt_tokens=new.num_prompt_tokens,
                sample_index=new.sample_index,
                masked_until_min_tokens=new.masked_until_min_tokens,
            )
            for new in plan.new_requests
        ]
        staging.add(list(chain.from_iterable(words)))
        staging.add(list(chain.from_iterable(new.token_ids for new in plan.new_requests)))
        width = self.block_table.shape[1]
        staging.add([u.slot * width + u.start + i for u in plan.block_updates for i in range(len(u.blocks))])
        staging.add(list(chain.from_iterable(update.blocks for update in plan.block_updates)))
        if plan.token_updates:
            width = self.token_ids.shape[1]
            staging.add([u.slot * width + u.start + i for u in plan.token_updates for i in range(len(u.tokens))])
            staging.add(list(chain.from_iterable(update.tokens for update in plan.token_updates)))

    def apply(self, plan: StepPlan, sent: Iterator[Tensor]) -> None:
        """Fill new slots, append blocks and write tokens, with what :meth:`stage` added, now on the device."""
        words, tokens, where, blocks = (next(sent) for _ in range(4))
        begin = 0
        for new in plan.new_requests:
            end = begin + len(new.token_ids)
            self.token_ids[new.slot, : end - begin] = tokens[begin:end]
            begin = end
        if plan.new_requests:
            self.sampling.write_recorded(words)
        if plan.block_updates:
            self.block_table.view(-1).index_copy_(0, where, blocks.to(torch.int32))
        if plan.token_updates:
            self.token_ids.view(-1).index_copy_(0, next(sent), next(sent).to(torch.int32))
