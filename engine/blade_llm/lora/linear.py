"""Linear layers that also apply adapters: whatever the base layer is (plain, int8, int4), and whichever layers of the
checkpoint it is made of (one, queries with keys and values, gate with up)."""

from __future__ import annotations

import torch
from torch import Tensor

from blade_llm.kernels.backend import backend_of
from blade_llm.kernels.lora import FactorTable
from blade_llm.layers.linear import Linear
from blade_llm.layers.moe import MoE
from blade_llm.lora.device_slots import DeviceSlots
from blade_llm.lora.reader import AdapterWeights
from blade_llm.models.linear_method import LinearMethod
from blade_llm.models.parameters import Parameters
from blade_llm.spec.moe import MoESpec
from blade_llm.spec.tensors import LinearMap, TensorMap


class AdapterSlots:
    """The adapters that tokens can use, by slot; slot 0 is none. Only ``max_loras`` of all that are loaded."""

    on_device: DeviceSlots | None = None
    """Where their matrices are, for kernels that find them on the device; to be set before layers are made."""

    def __init__(self, max_loras: int, device: torch.device) -> None:
        self._tables: dict[str, FactorTable] = {}
        """By place in the model."""
        self._size = max_loras + 1
        self._native = backend_of(torch.empty(0, device=device)) == "native"

    def wrap(self, method: LinearMethod, tensors: TensorMap, places: frozenset[str]) -> LinearMethod:
        """A linear method whose layers at ``places`` apply adapters."""
        return _WithAdapters(method, tensors, places, self)

    def table(self, place: str) -> FactorTable:
        """The matrices of the layer at ``place``."""
        if place not in self._tables:
            table = self._tables[place] = FactorTable(place, self._size)
            if self.on_device is not None:
                table.device = self.on_device.table(place)
            if self._native:
                from blade_llm.kernels.lora import native

                native.use_native(table)
        return self._tables[place]

    def put(self, slot: int, weights: AdapterWeights) -> None:
        """From the next step on, ``slot`` is this adapter."""
        for place, table in self._tables.items():
            table.put(slot, weights.factors.get(place))


class _WithAdapters:
    def __init__(self, method: LinearMethod, tensors: TensorMap, places: frozenset[str], slots: AdapterSlots) -> None:
        self._method = method
        self._slots = slots
        self._places = {id(linear): place for place, linear in tensors.linears.items() if place in places}

    def create(self, parameters: Parameters, linear: LinearMap) -> Linear:
        made = self._method.create(parameters, linear)
        place = self._places.get(id(linear))
        if place is not None:
            made.adapters = self._slots.table(place)
        return made

    @property
    def deterministic(self) -> bool:
        return self._method.deterministic

    def moe(self, parameters: Parameters, place: str, spec: MoESpec) -> MoE:
        return self._method.moe(parameters, place, spec)

    def shared(self, weight: Tensor) -> Linear:
        return self._method.shared(weight)
