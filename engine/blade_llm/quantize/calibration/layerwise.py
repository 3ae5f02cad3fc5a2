"""One decoder layer after the other: seen with its original weights, quantised, and computed again."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torch import Tensor

from blade_llm.models.config import ModelConfig
from blade_llm.quantize.calibration.forward import LayerwiseModel, Outside
from blade_llm.quantize.calibration.groups import InputGroup, input_groups
from blade_llm.quantize.calibration.images import SampleImages
from blade_llm.quantize.calibration.layer import LayerQuantizer, QuantizedLayer
from blade_llm.quantize.calibration.recording import ActivationKind, CalibrationMethod, Recorder
from blade_llm.quantize.calibration.samples import Batch, Samples, batches_of
from blade_llm.quantize.calibration.states import StateFiles, States
from blade_llm.quantize.calibration.weights import CheckpointTensors
from blade_llm.quantize.compress import rounded
from blade_llm.quantize.options import QuantizeOptions
from blade_llm.quantize.source import DTYPES, TensorReader
from blade_llm.runner.startup.host_memory import give_back_free_memory
from blade_llm.spec.tensors import EMBEDDING, TensorMap

_MOST_LOSS: Final = 700.0
"""Above, e to the power of it is no number."""


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Of the samples that judge the result."""

    before: float
    after: float

    @property
    def increase(self) -> float:
        """As a share of what it was."""
        return self.after / self.before - 1


class Layerwise:
    """A model that is quantised layer by layer."""

    def __init__(
        self,
        config: ModelConfig,
        reader: TensorReader,
        samples: Samples,
        options: QuantizeOptions,
        modules: Mapping[str, str],
        images: SampleImages | None = None,
    ) -> None:
        """``modules``: the linear layers to quantise, by the names of their weights. ``images``: those of
        ``samples``."""
        assert (images is not None) == bool(samples.images)
        stored = reader.checkpoint.tensors
        self.samples = samples
        self._hidden = config.hidden_size
        self.tensors = config.tensors.found_in(stored)
        self.weights = CheckpointTensors(reader)
        types = {name: DTYPES[info.dtype] for name, info in stored.items() if info.dtype in DTYPES}
        self.quantizer = LayerQuantizer(options, self.tensors, self.weights, modules, types)
        self._activations: ActivationKind | None = None
        if options.activations:
            self._activations = "fp8" if options.dtype == "fp8" else "int8"
        outside = _outside(self.tensors, modules, options, self._activations)
        self.model = LayerwiseModel(config, self.tensors, self.weights, samples, outside, images)
        everything = range(len(samples.token_ids))
        self._all = batches_of(samples, everything)
        self._calibrating = batches_of(samples, samples.calibrating)
        self._judging = batches_of(samples, samples.judges)

    @property
    def num_layers(self) -> int:
        return len(self.model.spec.layers)

    @property
    def judging(self) -> slice:
        """The rows of the samples that judge, among those of all."""
        return slice(self._judging[0].rows.start, self._judging[-1].rows.stop)

    def first_states(self, files: StateFiles) -> States:
        """Those before the first layer, where ``files`` keeps them."""
        embedded = self.model.embedded()
        if not self.model.rounds_embeddings:
            return files.first(embedded, embedded[self.judging])
        return files.first(self.model.embedded(quantized=True), embedded[self.judging])

    def state_files(self, folder: Path, *, mapped: bool) -> StateFiles:
        """Where the states between layers go. ``mapped``: they stay in these files instead of memory."""
        judging = self.judging
        tokens = sum(map(len, self.samples.token_ids))
        return StateFiles(folder, tokens, judging.stop - judging.start, self._hidden, mapped=mapped)

    def names(self, index: int) -> set[str]:
        """The tensors of decoder layer ``index``."""
        place = f"layers.{index}."
        tensors = {part.name for where, part in self.tensors.tensors.items() if where.startswith(place)}
        linears = (linear for where, linear in self.tensors.linears.items() if where.startswith(place))
        return tensors | {part.name for linear in linears for part in linear.tensors()}

    def groups(self, index: int) -> list[InputGroup]:
        return input_groups(self.model.spec.layers[index], self.tensors, index)

    def quantize_layer(
        self, index: int, states: States, target: States, smoothing: float | None, done: Callable[[str], None]
    ) -> QuantizedLayer:
        """Quantise decoder layer ``index``. ``states``: before it; those after it go into ``target``, which may be the
        same."""
        groups = self.groups(index)
        places = [place for group in groups for place in group.places if self.quantizer.quantized(place)]
        self.quantizer.require_finite(places)
        give_back_free_memory()  # of what came before: it would stay beside the layer
        recorder = Recorder(places, hessians=self.quantizer.measures_outputs)
        layer = self.model.layer(index, CalibrationMethod(dict(self.tensors.linears), recorder))
        for batch in self._calibrating if places else ():
            self.model.compute(layer, index, states.quantized[batch.rows], batch)
        recorder.active = False
        first = self.judging.start
        for batch in self._judging:
            rows = slice(batch.rows.start - first, batch.rows.stop - first)
            target.original[rows] = self.model.compute(layer, index, states.original[rows], batch)
        del layer
        inputs = {place: recorder.inputs(place) for place in places}
        result = self.quantizer.quantize(groups, inputs, smoothing, done)
        del inputs
        self.compute_quantized(index, result, states.quantized, target.quantized, self._all)
        return result

    def compute_quantized(
        self, index: int, result: QuantizedLayer, x: Tensor, target: Tensor, batches: Collection[Batch]
    ) -> None:
        """The states after decoder layer ``index`` as ``result`` has it, from those before; both [tokens, hidden]."""
        self.weights.forget()
        self.weights.replaced.update(result.changed)
        self.weights.replaced.update(result.weights)
        places = {place for group in self.groups(index) for place in group.places if self.quantizer.quantized(place)}
        method = CalibrationMethod(dict(self.tensors.linears), None, self._activations, places)
        layer = self.model.layer(index, method)
        self.weights.forget()
        result.weights.clear()
        for batch in batches:
            target[batch.rows] = self.model.compute(layer, index, x[batch.rows], batch)

    def perplexity(self, states: States) -> Perplexity | None:
        """From the states after the last layer; None where no sample has two tokens."""
        give_back_free_memory()
        before, count = self.model.loss(states.original, self.samples.judges)
        after, _ = self.model.loss(states.quantized[self.judging], self.samples.judges, quantized=True)
        return Perplexity(_perplexity(before, count), _perplexity(after, count)) if count else None


def _outside(
    tensors: TensorMap, modules: Mapping[str, str], options: QuantizeOptions, activations: ActivationKind | None
) -> Outside:
    """What of the model is quantised outside of its layers: to the nearest, whatever the algorithm."""

    def of_table(rows: Tensor) -> Tensor:
        return rounded(rows, options.for_table)

    def of_head(rows: Tensor) -> Tensor:
        return rounded(rows, options)

    head = tensors.linears.get("head")
    quantizes_head = head is not None and any(part.name in modules for part in head.weights)
    quantizes_table = tensors.tensors[EMBEDDING].name in modules
    return Outside(of_table if quantizes_table else None, of_head if quantizes_head else None, activations)


def _perplexity(loss: float, count: int) -> float:
    return math.exp(min(loss / count, _MOST_LOSS))
