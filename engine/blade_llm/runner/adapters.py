"""The adapters of a runner: what each adapter slot holds, and which adapter each request's slot uses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from blade_llm.kernels.lora import AdapterBatch
from blade_llm.lora.linear import AdapterSlots
from blade_llm.lora.reader import AdapterWeights
from blade_llm.lora.targets import Targets
from blade_llm.models.linear_method import LinearMethod
from blade_llm.runner.staging import Staging
from blade_llm.scheduling.plan import StepPlan
from blade_llm.spec.tensors import TensorMap


@dataclass(frozen=True, slots=True)
class StepAdapters:
    """The tokens of a step that use adapters."""

    tokens: AdapterBatch
    selected: AdapterBatch
    """The same of the tokens that the last layer goes on with, counted among these."""


class _Sorted:
    """Tokens by adapter, on their way to the device."""

    def __init__(self, adapters: np.ndarray, staging: Staging) -> None:
        rows, self._slots, self._starts = AdapterBatch.sort(adapters)
        staging.add(rows)

    def batch(self, rows: Tensor) -> AdapterBatch:
        return AdapterBatch(rows, self._slots, self._starts)


class RunnerAdapters:
    """Adapters on one device.

    ``loaded`` is filled by whoever loads adapters: adapter number → its weights in host memory. A plan names those
    numbers, and the slot that each is to take.
    """

    def __init__(self, targets: Targets, *, max_loras: int, max_num_seqs: int, device: torch.device) -> None:
        self.targets = targets
        self.loaded: dict[int, AdapterWeights] = {}
        self._slots = AdapterSlots(max_loras, device)
        self._of_request = np.zeros(max_num_seqs + 1, dtype=np.int64)
        """The adapter slot of each request's slot; 0: none."""
        self._device = device
        self._stream: torch.cuda.Stream | None = None

    def wrap(self, method: LinearMethod, tensors: TensorMap) -> LinearMethod:
        """A linear method whose layers apply the adapters."""
        return self._slots.wrap(method, tensors, frozenset(self.targets.linears))

    def apply(self, plan: StepPlan) -> None:
        """Carry out what ``plan`` changes: adapters that take slots, requests that come and go."""
        for slot in plan.freed_slots:
            self._of_request[slot] = 0
        for update in plan.adapter_updates:
            self._put(update.slot, self.loaded[update.adapter])
        for new in plan.new_requests:
            self._of_request[new.slot] = new.adapter_slot

    def stage(
        self, slots: np.ndarray, counts: np.ndarray, selected: np.ndarray, staging: Staging
    ) -> tuple[_Sorted, _Sorted] | None:
        """Add to ``staging`` which tokens use adapters, two vectors; None: no token does, and nothing is added.

        ``slots``, ``counts``: [sequences], the requests' slots and numbers of tokens; ``selected``: [selected], the
        tokens that the last layer goes on with.
        """
        adapters = self._of_request[slots]
        if not adapters.any():
            return None
        of_tokens = adapters.repeat(counts)
        return _Sorted(of_tokens, staging), _Sorted(of_tokens[selected], staging)

    def _put(self, slot: int, weights: AdapterWeights) -> None:
        if self._device.type == "cpu":
            self._slots.put(slot, weights)
            return
        # On a stream of its own: the copy runs beside steps, and only what is launched from now on waits for it.
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            factors = {place: each.to(self._device) for place, each in weights.factors.items()}
        current.wait_stream(self._stream)
        for each in factors.values():
            for tensor in (each.a, *(piece.b for piece in each.slices)):
                tensor.record_stream(current)
        self._slots.put(slot, AdapterWeights(weights.digest, factors, weights.rank))
