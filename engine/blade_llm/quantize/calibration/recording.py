"""Linear layers that note what their inputs are, and the layers' interface that makes them of any family's records."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from blade_llm.kernels.activate import activate
from blade_llm.kernels.experts.torch import weighted_sum
from blade_llm.kernels.linear.activations import Activations
from blade_llm.layers.linear import Linear
from blade_llm.layers.mlp import MLP
from blade_llm.layers.moe import MoE
from blade_llm.layers.step import StepMetadata
from blade_llm.models.parameters import Parameters
from blade_llm.quantization.checks import checked_rows
from blade_llm.quantization.hessian import Hessian, HessianAccumulator
from blade_llm.quantization.input_statistics import InputStatistics, InputStatisticsAccumulator
from blade_llm.spec.moe import MoESpec
from blade_llm.spec.tensors import LinearMap

ActivationKind = Literal["int8", "fp8"]


@dataclass(frozen=True, slots=True)
class Inputs:
    """What calibration saw of a linear layer's inputs."""

    statistics: InputStatistics
    hessian: Hessian | None
    """None where the algorithm needs none."""


class Recorder:
    """Collects the inputs of linear layers by their places, such as ``layers.3.attention.qkv``."""

    def __init__(self, places: Collection[str], *, hessians: bool) -> None:
        self._places = places
        self._hessians = hessians
        self._statistics: dict[str, InputStatisticsAccumulator] = {}
        self._sums: dict[str, HessianAccumulator] = {}
        self.active = True
        """Whether inputs are noted."""

    def add(self, place: str, x: Tensor) -> None:
        """Count in the inputs ``x`` ([tokens, in]) of the layer at ``place``."""
        if not self.active or place not in self._places or not len(x):
            return
        if place not in self._statistics:
            self._statistics[place] = InputStatisticsAccumulator(x.shape[1])
            if self._hessians:
                self._sums[place] = HessianAccumulator(x.shape[1])
        self._statistics[place].add(x)
        if self._hessians:
            self._sums[place].add(x)

    def inputs(self, place: str) -> Inputs | None:
        """Of the layer at ``place``, once: what was summed up is let go. None for a layer that saw none, as an expert
        that no token chose."""
        statistics, sums = self._statistics.pop(place, None), self._sums.pop(place, None)
        if statistics is None:
            return None
        return Inputs(statistics.finish(), None if sums is None else sums.finish(last=True))


class CalibrationLinear(Linear):
    """A plain linear layer in fp32. With ``activations`` its inputs are rounded to 8 bits token by token."""

    __slots__ = ("_activations", "_place", "_recorder")

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        place: str,
        recorder: Recorder | None,
        activations: ActivationKind | None,
    ) -> None:
        self.packed, self.adapters = None, None
        self.weight, self.bias = weight, bias
        self.nbytes = weight.nbytes
        self._place, self._recorder, self._activations = place, recorder, activations

    def __call__(self, x: Tensor, step: StepMetadata | None = None) -> Tensor:
        assert self.weight is not None
        if self._recorder is not None:
            self._recorder.add(self._place, x)
        if self._activations is not None and len(x):
            x = Activations(self._activations).rounded(checked_rows(x, x.shape[-1]))
        return F.linear(x, self.weight, self.bias)


class CalibrationExperts:
    """Experts one after the other, each with the tokens that chose it (:mod:`blade_llm.kernels.experts`)."""

    nbytes = 0

    def __init__(self, experts: list[tuple[CalibrationLinear, CalibrationLinear]]) -> None:
        self._experts = experts

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        tokens, top_k = ids.shape
        places = ids.flatten().long()
        order = places.argsort(stable=True)
        counts = places.bincount(minlength=len(self._experts)).tolist()
        results = torch.empty(tokens * top_k, x.shape[1], dtype=x.dtype)
        for pairs, (up, down) in zip(torch.split(order, counts), self._experts, strict=True):
            if len(pairs):
                results[pairs] = down(activate(up(x[pairs // top_k]), "silu", gated=True))
        return weighted_sum(results.view(tokens, top_k, x.shape[1]), weights)


class CalibrationMoE(MoE):
    """A mixture of experts whose experts are :class:`CalibrationLinear`."""

    __slots__ = ()

    def __init__(
        self,
        spec: MoESpec,
        router: Linear,
        experts: list[tuple[CalibrationLinear, CalibrationLinear]],
        shared: MLP | None,
        shared_gate: Linear | None,
        correction_bias: Tensor | None,
    ) -> None:
        self.spec, self.router, self.experts = spec, router, CalibrationExperts(experts)
        self.shared, self.shared_gate, self.correction_bias = shared, shared_gate, correction_bias
        self.nbytes = 0


class CalibrationMethod:
    """A :class:`~blade_llm.models.linear_method.LinearMethod` whose layers are plain and note their inputs."""

    deterministic = False

    def __init__(
        self,
        places: dict[str, LinearMap],
        recorder: Recorder | None = None,
        activations: ActivationKind | None = None,
        rounded: Collection[str] = (),
    ) -> None:
        """``places``: all linear layers. ``activations``: what the inputs of those at ``rounded`` are rounded to."""
        self._place_of = {_key(linear): place for place, linear in places.items()}
        self._recorder, self._activations, self._rounded = recorder, activations, rounded

    def create(self, parameters: Parameters, linear: LinearMap) -> CalibrationLinear:
        place = self._place_of[_key(linear)]
        bias = parameters.read(linear.biases) if linear.bias else None
        activations = self._activations if place in self._rounded else None
        return CalibrationLinear(parameters.read(linear.weights), bias, place, self._recorder, activations)

    def moe(self, parameters: Parameters, place: str, spec: MoESpec) -> CalibrationMoE:
        def pair(name: str) -> tuple[CalibrationLinear, CalibrationLinear]:
            up, down = (self.create(parameters, parameters.linear(f"{place}.{name}.{part}")) for part in ("up", "down"))
            return up, down

        def plain(name: str) -> Linear:
            return CalibrationLinear(parameters.tensor(f"{place}.{name}"), None, f"{place}.{name}", None, None)

        return CalibrationMoE(
            spec,
            plain("router"),
            [pair(f"experts.{index}") for index in spec.experts],
            None if spec.shared is None else MLP(spec.shared, *pair("shared")),
            plain("shared_gate") if spec.shared_gate else None,
            parameters.tensor(f"{place}.correction_bias").float() if spec.correction_bias else None,
        )

    def shared(self, weight: Tensor) -> Linear:
        return CalibrationLinear(weight, None, "head", None, None)


def _key(linear: LinearMap) -> tuple[str, tuple[int, int] | None]:
    """What tells a linear layer from all others."""
    return linear.parts[0].module, linear.parts[0].one_of
