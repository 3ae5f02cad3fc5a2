"""Quantises the linear layers of one decoder layer by what calibration saw of their inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from blade_llm.kernels.linear.float8 import Float8Weight
from blade_llm.kernels.linear.quantized import QuantizedWeight
from blade_llm.models.errors import ModelFilesError
from blade_llm.quantization.awq import search_scales
from blade_llm.quantization.checks import check_weight
from blade_llm.quantization.clipping import least_output_error
from blade_llm.quantization.float8 import quantize_float8
from blade_llm.quantization.gptq import GptqOptions, gptq, split
from blade_llm.quantization.grid import Grid
from blade_llm.quantization.hessian import Hessian
from blade_llm.quantization.input_statistics import InputStatistics
from blade_llm.quantization.minmax import minmax
from blade_llm.quantization.report import output_energy
from blade_llm.quantization.smoothquant import smoothing_scales
from blade_llm.quantize.calibration.groups import InputGroup, LinearBefore
from blade_llm.quantize.calibration.recording import Inputs
from blade_llm.quantize.calibration.smoothing import Scaled
from blade_llm.quantize.calibration.weights import CheckpointTensors
from blade_llm.quantize.compress import Compressed, integer_tensors
from blade_llm.quantize.options import QuantizeOptions
from blade_llm.spec.tensors import LinearPart, TensorMap

_UNSEEN: Final = "no token of the calibration reached it: rounded to nearest"


@dataclass(slots=True)
class QuantizedLayer:
    """What becomes of a decoder layer's tensors, by their names in the checkpoint."""

    compressed: dict[str, Compressed] = field(default_factory=dict)
    changed: dict[str, Tensor] = field(default_factory=dict)
    """Norms, biases and routers that scales went into."""
    weights: dict[str, Tensor | QuantizedWeight | Float8Weight] = field(default_factory=dict)
    """The quantised weights: for the inputs as they are then."""
    notes: dict[str, str] = field(default_factory=dict)
    """By place: why a layer's inputs were not scaled."""


class LayerQuantizer:
    """Quantises one decoder layer after the other by the same options."""

    def __init__(
        self,
        options: QuantizeOptions,
        tensors: TensorMap,
        weights: CheckpointTensors,
        modules: Mapping[str, str],
        types: Mapping[str, torch.dtype],
    ) -> None:
        """``modules``: the linear layers to quantise, by the names of their weights; ``types``: of all tensors."""
        self._options = options
        self._tensors = tensors
        self._weights = weights
        self._modules = modules
        self._types = types

    @property
    def needs_hessians(self) -> bool:
        """Of the inputs, for the algorithm."""
        return self._options.uses_gptq or self._options.algorithm == "awq"

    @property
    def measures_outputs(self) -> bool:
        """Whether Hessians are wanted in any case: the errors of outputs follow from them."""
        return self.needs_hessians or self._options.max_perplexity_increase is not None

    def quantized(self, place: str) -> list[LinearPart]:
        """The parts of the linear layer at ``place`` that are to be quantised."""
        return [part for part in self._tensors.linears[place].parts if part.weight.name in self._modules]

    def require_finite(self, places: Iterable[str]) -> None:
        """Raise :class:`ModelFilesError` for weights at ``places`` that are not finite: computed with, they would spoil
        all that follows."""
        for part in (part for place in places for part in self.quantized(place)):
            try:
                check_weight(self._weights.tensor(part.weight.name))
            except ValueError as error:
                raise ModelFilesError(f"{part.weight.name} cannot be quantised: {error}") from None

    def quantize(
        self,
        groups: Sequence[InputGroup],
        inputs: Mapping[str, Inputs | None],
        smoothing: float | None,
        done: Callable[[str], None] = lambda name: None,
    ) -> QuantizedLayer:
        """Quantise the layer whose ``groups`` these are. ``inputs``: by place; ``smoothing``: SmoothQuant's exponent,
        None for no scales; ``done``: called with the name of each weight. Raises :class:`ModelFilesError` for weights
        that cannot be."""
        layer = QuantizedLayer()
        scaled = Scaled(self._weights, self._tensors)
        if (self._options.smooths and smoothing is not None) or self._options.algorithm == "awq":
            for group in groups:
                if (scales := self._scales(group, inputs, scaled, smoothing, layer.notes)) is not None:
                    scaled.fold(group, scales)
        layer.changed = scaled.changed
        for place in (place for group in groups for place in group.places):
            if parts := self.quantized(place):
                self._quantize(place, parts, inputs.get(place), scaled, layer)
                for part in parts:
                    done(part.weight.name)
        return layer

    def _scales(
        self,
        group: InputGroup,
        inputs: Mapping[str, Inputs | None],
        scaled: Scaled,
        smoothing: float | None,
        notes: dict[str, str],
    ) -> Tensor | None:
        """What the inputs of ``group`` are divided by; None where they stay as they are."""
        if not any(self.quantized(place) for place in group.places):
            return None
        if isinstance(group.before, LinearBefore) and self._options.activations:
            return None  # the paper's: only what norms make is smoothed
        places = (*group.places, *((group.before.place,) if isinstance(group.before, LinearBefore) else ()))
        if group.before is None:
            notes |= dict.fromkeys(group.places, f"not scaled: {group.why}")
            return None
        if not all(len(self.quantized(place)) == len(self._tensors.linears[place].parts) for place in places):
            why = "not scaled: a layer that shares its input, or makes it, stays as it is"
            notes |= dict.fromkeys(group.places, why)
            return None
        seen = [found for place in group.places if (found := inputs.get(place)) is not None]
        if not seen:
            return None
        statistics = _combined_statistics([each.statistics for each in seen])
        weights = [weight for place in group.places for weight in scaled.weight(place)]
        if self._options.algorithm != "awq":
            assert smoothing is not None
            return _normalised(smoothing_scales(weights, statistics.most, smoothing), self._options.activations)
        hessian = _combined_hessians([each.hessian for each in seen if each.hessian is not None])
        grid = self._grid(self._tensors.linears[group.places[0]].parts[0])
        return search_scales(weights, hessian, statistics.mean, grid).scales

    def _quantize(
        self, place: str, parts: list[LinearPart], inputs: Inputs | None, scaled: Scaled, layer: QuantizedLayer
    ) -> None:
        whole = dict(zip(self._tensors.linears[place].parts, scaled.weight(place), strict=True))
        weights = [whole[part] for part in parts]
        factors = scaled.inputs.get(place)
        hessian = None if inputs is None else inputs.hessian
        if hessian is not None and factors is not None:
            hessian = hessian.scaled(1 / factors)
        try:
            found, notes = self._round(parts, weights, hessian)
        except ValueError as error:
            names = " or ".join(part.weight.name for part in parts)
            raise ModelFilesError(
                f"{names} cannot be quantised: {error}; --ignore {parts[0].module} leaves it as it is"
            ) from None
        if inputs is None:
            notes = (*notes, _UNSEEN)
        if place in layer.notes:
            notes = (*notes, layer.notes[place])
        for part, weight, quantized in zip(parts, weights, found, strict=True):
            name, values = part.weight.name, quantized.dequantize()  # fp32, a new tensor
            if isinstance(quantized, QuantizedWeight):
                tensors = integer_tensors(quantized, self._options)
            else:
                tensors = {"weight": quantized.values, "weight_scale": quantized.scales}
            layer.weights[name] = quantized
            wrong = values.sub_(weight)
            # Errors are those of the original weight: the scales on both sides are taken out again.
            if (divided := scaled.outputs.get(part.module)) is not None:
                wrong *= divided[:, None]
                weight = weight * divided[:, None]
            output = None if hessian is None else _ratio(output_energy(wrong, hessian), output_energy(weight, hessian))
            if factors is not None:
                wrong /= factors
                weight = weight / factors
            layer.compressed[name] = Compressed(tensors, _ratio(_energy(wrong), _energy(weight)), output, notes)

    def _round(
        self, parts: list[LinearPart], weights: list[Tensor], hessian: Hessian | None
    ) -> tuple[Sequence[QuantizedWeight | Float8Weight], tuple[str, ...]]:
        if self._options.dtype == "fp8":
            types = [self._types[part.weight.name] for part in parts]
            return [quantize_float8(weight, "channel", each) for weight, each in zip(weights, types, strict=True)], ()
        grids = [self._grid(part) for part in parts]
        if hessian is None or not self.needs_hessians:
            return [minmax(weight, grid) for weight, grid in zip(weights, grids, strict=True)], ()
        if self._options.algorithm == "awq":
            return [
                grid.quantize(weight, least_output_error(weight, grid, hessian))
                for weight, grid in zip(weights, grids, strict=True)
            ], ()
        how = GptqOptions(self._options.damping, act_order=self._options.act_order, static_groups=True)
        if len(set(grids)) == 1:
            result = gptq(torch.cat(weights), hessian, grids[0], how)
            return split(result.weight, [len(weight) for weight in weights]), result.notes
        results = [gptq(weight, hessian, grid, how) for weight, grid in zip(weights, grids, strict=True)]
        return [result.weight for result in results], results[0].notes

    def _grid(self, part: LinearPart) -> Grid:
        options = self._options
        return Grid(options.bits, options.group_size, options.symmetric, self._types[part.weight.name])


def _normalised(scales: Tensor, activations: bool) -> Tensor:
    """Around 1 where only weights are quantised: what takes the scales then stays of the size that it had."""
    return scales if activations else scales / (scales.max() * scales.min()).sqrt()


def _combined_statistics(some: Sequence[InputStatistics]) -> InputStatistics:
    if len(some) == 1:
        return some[0]
    tokens = sum(each.tokens for each in some)
    mean = torch.stack([each.mean * (each.tokens / tokens) for each in some]).sum(0)
    return InputStatistics(torch.stack([each.most for each in some]).amax(0), mean, tokens)


def _combined_hessians(some: Sequence[Hessian]) -> Hessian:
    if len(some) == 1:
        return some[0]
    tokens = sum(each.tokens for each in some)
    matrix = torch.zeros_like(some[0].matrix)
    for each in some:
        matrix.add_(each.matrix, alpha=each.tokens / tokens)
    return Hessian(matrix, tokens)


def _energy(values: Tensor) -> float:
    return float(values.double().square().sum())


def _ratio(wrong: float, whole: float) -> float:
    """Of norms, given their squares."""
    error = math.sqrt(wrong / whole) if whole else 0.0
    if not math.isfinite(error):
        raise ModelFilesError("rounded, the largest weights of a layer are more than their type can hold")
    return error
