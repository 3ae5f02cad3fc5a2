"""The adapters of a runner: what each adapter slot holds, and which adapter each request's slot uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch

from blade_llm.config import EngineConfig
from blade_llm.kernels.lora import groups_on_device
from blade_llm.lora.device_slots import DeviceSlots
from blade_llm.lora.linear import AdapterSlots
from blade_llm.lora.packing import PackedAdapter, pack
from blade_llm.lora.reader import AdapterReader, AdapterWeights
from blade_llm.lora.targets import Targets
from blade_llm.models.config import ModelConfig
from blade_llm.models.errors import NotEnoughMemoryError
from blade_llm.models.implementation import read_model_config
from blade_llm.models.linear_method import LinearMethod
from blade_llm.runner.lora.slot_copies import CudaStreams, NoStreams, SlotCopies
from blade_llm.runner.lora.step import DeviceAdapters, StagedAdapters, StagedRows
from blade_llm.runner.staging import Staging
from blade_llm.scheduling.plan import StepPlan
from blade_llm.spec.adapter_layout import SlotLayout, buffers_of
from blade_llm.spec.tensors import TensorMap


def targets_of(config: EngineConfig, model_config: ModelConfig) -> Targets:
    """What adapters may have weights for. Of a stage, whose ``model_config`` does not know the others' layers, these
    are known, too: an adapter of the whole model is one of each stage."""
    if model_config.stage is None:
        return Targets.of(model_config)
    return Targets.of(model_config, read_model_config(config.model_dir, config.model_impl, config.task))


class RunnerAdapters:
    """Adapters on one device.

    ``loaded`` is filled by whoever loads adapters: adapter number → its weights in host memory. A plan names those
    numbers, and the slot that each is to take.
    """

    def __init__(self, targets: Targets, config: EngineConfig, dtype: torch.dtype, device: torch.device) -> None:
        """``dtype``: of adapters' weights."""
        self.targets = targets
        self.dtype = dtype
        self.loaded: dict[int, AdapterWeights] = {}
        self._config = config
        self._slots = AdapterSlots(config.max_loras, device)
        self._of_request = np.zeros(config.max_num_seqs + 1, dtype=np.int64)
        """The adapter of each request's slot, 0 for none: its buffer where kernels find adapters on the device, else
        its slot."""
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        self._layout: SlotLayout | None = None
        if groups_on_device(torch.empty(0, device=device)):
            self._layout = SlotLayout(targets.linears, config.max_lora_rank)
        self._copies: SlotCopies | None = None
        self.on_device: DeviceAdapters | None = None
        """What says on the device which adapter each request's slot uses, for kernels that find it there; from
        :meth:`wrap` on."""
        self._all_steps = False

    def wrap(self, method: LinearMethod, tensors: TensorMap) -> LinearMethod:
        """A linear method whose layers apply the adapters. Allocates the slots on a GPU.

        Raises :class:`~blade_llm.models.errors.NotEnoughMemoryError`.
        """
        if self._layout is not None:
            self._allocate(self._layout)
        return self._slots.wrap(method, tensors, frozenset(self.targets.linears))

    @property
    def allocated_bytes(self) -> int:
        """What the slots have taken from the device's memory for good; 0 where adapters are allocated one by one."""
        return 0 if self._slots.on_device is None else self._slots.on_device.nbytes

    def reader(self) -> AdapterReader:
        """Reads what ``loaded`` is to have: of several ranks, this one's part of an adapter."""
        return AdapterReader(self.targets, self._config.max_lora_rank, self.dtype, self.prepare)

    def prepare(self, weights: AdapterWeights) -> AdapterWeights:
        """``weights`` in the form in which they are copied to the device. For the thread that has read them."""
        if self._layout is None:
            return weights
        return replace(weights, factors={}, packed=self._packed(self._layout, weights))

    def apply(self, plan: StepPlan) -> None:
        """Carry out what ``plan`` changes: adapters that take slots, requests that come and go."""
        for slot in plan.freed_slots:
            self._of_request[slot] = 0
        for update in plan.adapter_updates:
            self._put(update.slot, self.loaded[update.adapter])
        copies = self._copies
        for new in plan.new_requests:
            self._of_request[new.slot] = new.adapter_slot if copies is None else copies.buffer_of(new.adapter_slot)

    def stage(
        self, slots: np.ndarray, counts: np.ndarray, selected: np.ndarray, staging: Staging
    ) -> StagedAdapters | None:
        """Add to ``staging`` what the device has to know of the step's adapters; None: it has none, and nothing is
        added.

        ``slots``, ``counts``: [sequences], the requests' slots and numbers of tokens; ``selected``: [selected], the
        tokens that the last layer goes on with.
        """
        adapters = self._of_request[slots]
        if not (adapters.any() or self._all_steps):
            return None
        if self.on_device is None or self._copies is None:
            return StagedRows(adapters.repeat(counts), selected, staging)
        self._copies.await_copies(adapters.tolist())
        return self.on_device.stage(slots, adapters, staging)

    @contextmanager
    def in_all_steps(self) -> Iterator[None]:
        """Compute steps without adapters as if they had some, on a GPU: to compile the kernels, and to measure the
        memory that they need."""
        self._all_steps = self.on_device is not None
        try:
            yield
        finally:
            self._all_steps = False

    def _allocate(self, layout: SlotLayout) -> None:
        config, buffers = self._config, buffers_of(self._config.max_loras)
        try:
            slots = DeviceSlots(layout, buffers, self.dtype, self._device, deterministic=config.deterministic)
        except torch.OutOfMemoryError as error:
            needed = buffers * layout.buffer_bytes(self.dtype.itemsize)
            raise NotEnoughMemoryError(
                f"the slots of {config.max_loras} adapters of rank {layout.max_rank} need {needed} bytes on the GPU; "
                f"lower --max_loras or --max_lora_rank ({error})"
            ) from error
        self._slots.on_device = slots
        streams = CudaStreams(self._device) if self._device.type == "cuda" else NoStreams()
        self._copies = SlotCopies(config.max_loras, buffers, slots.write, streams)
        self.on_device = DeviceAdapters(
            config.max_num_seqs + 1, buffers + 1, self._device, deterministic=config.deterministic
        )

    def _packed(self, layout: SlotLayout, weights: AdapterWeights) -> PackedAdapter:
        if weights.packed is not None:
            return weights.packed
        return pack(layout, weights.factors, self.dtype, pinned=self._device.type == "cuda")

    def _put(self, slot: int, weights: AdapterWeights) -> None:
        if self._copies is not None and self._layout is not None:
            self._copies.put(slot, self._packed(self._layout, weights))
            return
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
