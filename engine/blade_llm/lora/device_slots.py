"""The device memory of adapters: one buffer each, and tables by which a kernel finds each layer's matrices in them."""

from __future__ import annotations

import torch

from blade_llm.kernels.lora.device import DeviceTable
from blade_llm.lora.packing import PackedAdapter
from blade_llm.spec.adapter_layout import UNIT, SlotLayout, padded


class DeviceSlots:
    """Buffers 1, 2, …; buffer 0 is no adapter. Their addresses never change, as CUDA graphs need it."""

    def __init__(
        self, layout: SlotLayout, buffers: int, dtype: torch.dtype, device: torch.device, *, deterministic: bool
    ) -> None:
        """``buffers``: that hold an adapter."""
        self.layout = layout
        self.buffers = buffers
        self._weights = torch.empty(buffers, layout.elements, dtype=dtype, device=device)
        self._entries = torch.zeros(buffers + 1, len(layout.places), layout.entry, dtype=torch.int32, device=device)
        self._deterministic = deterministic
        self.nbytes = self._weights.nbytes + self._entries.nbytes

    def table(self, place: str) -> DeviceTable:
        """What the layer at ``place`` multiplies with."""
        known = self.layout.places[place]
        step = known.step
        rows = [
            [first // step, count // step, padded(count) // UNIT]
            for first, count in zip(known.first_outputs, known.outputs, strict=True)
        ]
        return DeviceTable(
            weights=self._weights,
            entries=self._entries[:, known.index],
            parts=torch.tensor(rows, dtype=torch.int32, device=self._weights.device),
            step=step,
            inputs=known.inputs,
            outputs=known.outputs,
            max_rank=self.layout.max_rank,
            deterministic=self._deterministic,
        )

    def write(self, buffer: int, adapter: PackedAdapter) -> None:
        """Launch the copies of ``adapter`` into ``buffer``."""
        self._weights[buffer - 1, : len(adapter.weights)].copy_(adapter.weights, non_blocking=True)
        self._entries[buffer].copy_(adapter.entries, non_blocking=True)
