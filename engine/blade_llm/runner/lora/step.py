"""Which tokens of a step use which adapter: sorted on the host, or found on the device.

On the device a table says the buffer of the adapter of each request's slot. It changes where a slot has another request
than when it was last asked, and only steps with adapters ask: those without cost nothing. As a step reads nothing else,
a CUDA graph of it serves every mixture of adapters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from blade_llm.kernels.lora import AdapterBatch, TokenGroups, group_tokens
from blade_llm.kernels.paged_attention import RaggedBatch
from blade_llm.runner.staging import Staging

Grouped = AdapterBatch | TokenGroups


class StepAdapters(Protocol):
    """The adapters of one step."""

    replayable: ClassVar[bool]
    """Whether a graph with adapters computes the step."""

    def groups(self, batch: RaggedBatch, num_tokens: int, selected: Tensor | None) -> tuple[Grouped, Grouped]:
        """The tokens by adapter, and the same of those that the last layer goes on with: ``selected``, [selected]
        int64; None for all of them."""


class StagedAdapters(Protocol):
    """The adapters of a step that is on its way to the device."""

    def take(self, sent: Iterator[Tensor]) -> StepAdapters:
        """Take from ``sent`` what was staged."""


@dataclass(frozen=True, slots=True)
class SortedAdapters:
    """Of a step whose tokens the host has sorted."""

    replayable: ClassVar[bool] = False
    tokens: AdapterBatch
    selected: AdapterBatch

    def groups(self, batch: RaggedBatch, num_tokens: int, selected: Tensor | None) -> tuple[Grouped, Grouped]:
        return self.tokens, self.selected


class StagedRows:
    """Two vectors of rows: all tokens by adapter, and the selected ones."""

    def __init__(self, of_tokens: np.ndarray, selected: np.ndarray, staging: Staging) -> None:
        """``of_tokens``: [tokens], the adapter slot of each; ``selected``: as of a step."""
        self._segments = []
        for adapters in (of_tokens, of_tokens[selected]):
            rows, slots, starts = AdapterBatch.sort(adapters)
            staging.add(rows)
            self._segments.append((slots, starts))

    def take(self, sent: Iterator[Tensor]) -> SortedAdapters:
        return SortedAdapters(*(AdapterBatch(next(sent), *segments) for segments in self._segments))


class DeviceAdapters:
    """The table on the device; it is the adapters of every step."""

    replayable: ClassVar[bool] = True

    def __init__(self, num_slots: int, num_buffers: int, device: torch.device, *, deterministic: bool) -> None:
        """``num_slots``: of requests. ``num_buffers``: of adapters, buffer 0 (none) included."""
        self._of_request = torch.zeros(num_slots, dtype=torch.int32, device=device)
        self._known = np.zeros(num_slots, dtype=np.int64)
        """The same on the host."""
        self._num_buffers = num_buffers
        self._deterministic = deterministic

    def stage(self, slots: np.ndarray, buffers: np.ndarray, staging: Staging) -> StagedChanges:
        """Add to ``staging`` what the device has to know, so that the requests in ``slots`` use ``buffers``."""
        changed = self._known[slots] != buffers
        if not changed.any():
            return StagedChanges(self, staged=False)
        self._known[slots] = buffers
        staging.add(slots[changed])
        staging.add(buffers[changed])
        return StagedChanges(self, staged=True)

    def write(self, slots: Tensor, buffers: Tensor) -> None:
        """Change the table; both [changes] int64, on the device."""
        self._of_request.index_copy_(0, slots, buffers.to(torch.int32))

    def groups(self, batch: RaggedBatch, num_tokens: int, selected: Tensor | None) -> tuple[Grouped, Grouped]:
        buffers = self._of_request.index_select(0, batch.slots)
        if batch.host_query_lens != [1] * num_tokens:
            # The last sequence of a graph that is padded is padding, without adapter.
            buffers = buffers.index_select(0, batch.sequences(num_tokens))
        of_tokens = group_tokens(buffers, self._num_buffers, deterministic=self._deterministic)
        if selected is None:
            return of_tokens, of_tokens
        chosen = buffers.index_select(0, selected)
        return of_tokens, group_tokens(chosen, self._num_buffers, deterministic=self._deterministic)


class StagedChanges:
    """Two vectors, slots and buffers; none where the table is as it should be."""

    def __init__(self, adapters: DeviceAdapters, *, staged: bool) -> None:
        self._adapters = adapters
        self._staged = staged

    def take(self, sent: Iterator[Tensor]) -> DeviceAdapters:
        if self._staged:
            self._adapters.write(next(sent), next(sent))
        return self._adapters
