"""The table of positions on three axes, for models whose rotation has sections (M-RoPE: Wang et al., arXiv
2409.12191)."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from blade_llm.kernels.paged_attention import RaggedBatch
from blade_llm.models.vision.axis_positions import axis_positions
from blade_llm.scheduling.plan import NewRequest, StepPlan

_cached_positions = lru_cache(maxsize=64)(axis_positions)
"""Beams enter a slot in each step, all with the prompt's images."""


class AxisTable:
    """Positions of each slot's tokens, on the device; a step of a CUDA graph gathers its own there.

    Attributes:
        table: [slots, 3, positions] int32: temporal positions, rows, columns.
    """

    def __init__(self, num_slots: int, max_positions: int, merge_size: int, device: torch.device) -> None:
        self._merge_size = merge_size
        self._counting = torch.arange(max_positions, dtype=torch.int32, device=device)
        self.table = self._counting.expand(num_slots, 3, -1).contiguous()
        self._with_images: set[int] = set()
        """Slots whose rows are not those of text."""

    def apply(self, plan: StepPlan) -> None:
        """Write the positions of requests that enter a slot, of their output, too."""
        for new in plan.new_requests:
            if new.images:
                self._write(new)
            elif new.slot in self._with_images:
                self._with_images.remove(new.slot)
                self.table[new.slot] = self._counting

    def gather(self, batch: RaggedBatch, positions: Tensor) -> Tensor:
        """Positions of a step's tokens on each axis, [3, tokens] int64; ``positions``: [tokens] int64, in their
        sequences. Depends on nothing but device memory."""
        slots, num_tokens = batch.slots, len(positions)
        if num_tokens != len(batch.host_query_lens):
            slots = slots.index_select(0, batch.sequences(num_tokens))
        width = self.table.shape[2]
        first = slots * (3 * width) + positions
        axes = torch.stack((first, first + width, first + 2 * width))
        return self.table.view(-1)[axes].long()

    def _write(self, new: NewRequest) -> None:
        prompt, delta = _cached_positions(new.num_prompt_tokens, new.images, self._merge_size)
        row, length = self.table[new.slot], new.num_prompt_tokens
        row[:, :length] = torch.from_numpy(prompt).to(row.device)
        row[:, length:] = self._counting[length:] + delta
        self._with_images.add(new.slot)
