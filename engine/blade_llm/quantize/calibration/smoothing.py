"""Scales of inputs of linear layers, and what becomes of the weights that are multiplied or divided by them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from blade_llm.quantization.folding import fold_into_norm
from blade_llm.quantize.calibration.groups import InputGroup, LinearBefore, NormBefore, stored_outputs
from blade_llm.quantize.calibration.weights import CheckpointTensors
from blade_llm.spec.tensors import TensorMap


@dataclass(slots=True)
class Scaled:
    """How the weights of one decoder layer are scaled so far. The layer computes the same."""

    weights: CheckpointTensors
    tensors: TensorMap
    inputs: dict[str, Tensor] = field(default_factory=dict)
    """By place: what the weight's columns are multiplied by, [in] fp32; the inputs are divided by it."""
    outputs: dict[str, Tensor] = field(default_factory=dict)
    """By module: what the weight's rows are divided by, [out] fp32."""
    changed: dict[str, Tensor] = field(default_factory=dict)
    """By name: norms, biases and routers as they are now, in their own types."""

    def weight(self, place: str) -> list[Tensor]:
        """The scaled weights of the parts at ``place``, fp32."""
        found = []
        for part in self.tensors.linears[place].parts:
            weight = self.weights.tensor(part.weight.name)
            if (divided := self.outputs.get(part.module)) is not None:
                weight = weight / divided[:, None]
            if (factors := self.inputs.get(place)) is not None:
                weight = weight * factors
            found.append(weight)
        return found

    def fold(self, group: InputGroup, scales: Tensor) -> None:
        """Scale the inputs of ``group`` by ``1 / scales`` ([in] fp32, positive).

        What computes them is stored in 16 bits: the weights are multiplied by what it is divided by once it is rounded.
        Where routers have the same input scales become powers of two, by which nothing is rounded: tokens stay with
        their experts.
        """
        if group.plain:
            scales = torch.exp2(scales.log2().round())
        match group.before:
            case NormBefore():
                scales = self._into_norm(group.before, scales)
            case LinearBefore():
                self._into_linear(group.before, scales)
            case None:
                raise ValueError("nothing takes the scales of these layers")
        for place in group.places:
            self.inputs[place] = scales
        for place in group.plain:
            name = self.tensors.tensors[place].name
            stored = self._now(name)
            self.changed[name] = (stored.float() * scales).to(stored.dtype)

    def _now(self, name: str) -> Tensor:
        return self.changed[name] if name in self.changed else self.weights.stored(name)

    def _into_norm(self, norm: NormBefore, scales: Tensor) -> Tensor:
        """Returns what the norm's weight is divided by."""
        name = self.tensors.tensors[f"{norm.place}.weight"].name
        unit_offset = norm.spec.kind == "rms_unit_offset"
        before = self._now(name)
        after = fold_into_norm(before, None, scales, unit_offset=unit_offset).weight
        offset = 1.0 if unit_offset else 0.0
        exact = (before.float() + offset) / (after.float() + offset)
        # An input that the norm makes zero, or nearly so, is as it was.
        kept = torch.isfinite(exact) & (exact > 0)
        exact = exact.where(kept, torch.ones_like(exact))
        self.changed[name] = after.where(kept, before)
        if (bias := self.tensors.tensors.get(f"{norm.place}.bias")) is not None:
            stored = self._now(bias.name)
            self.changed[bias.name] = (stored.float() / exact).to(stored.dtype)
        return exact

    def _into_linear(self, linear: LinearBefore, scales: Tensor) -> None:
        record = self.tensors.linears[linear.place]
        for part, rows, these in stored_outputs(record, linear.first, len(scales)):
            divided = self.outputs.setdefault(part.module, torch.ones(part.outputs))
            divided[rows] *= scales[these]
            if record.bias:
                stored = self._now(part.bias.name).clone()
                stored[rows] = (stored[rows].float() / scales[these]).to(stored.dtype)
                self.changed[part.bias.name] = stored
