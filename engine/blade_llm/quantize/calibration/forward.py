"""The model computed layer by layer: embedding, one decoder layer at a time, and what follows the last."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from blade_llm.kernels.linear.activations import Activations
from blade_llm.kernels.paged_attention import RaggedBatch, prepare
from blade_llm.layers.rope import RotaryTable
from blade_llm.layers.step import KVCache, StepMetadata
from blade_llm.models.config import ModelConfig
from blade_llm.models.decoder_layer import DecoderLayer, build_norm
from blade_llm.models.linear_method import LinearMethod
from blade_llm.models.parameters import Parameters
from blade_llm.quantize.calibration.images import SampleImages
from blade_llm.quantize.calibration.recording import ActivationKind
from blade_llm.quantize.calibration.samples import Batch, Samples
from blade_llm.quantize.calibration.weights import CheckpointTensors
from blade_llm.runner.kv_cache import allocate_kv_cache
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.spec.tensors import TensorMap

_BLOCK: Final = 16
_MOST_POSITIONS: Final = 1 << 17
_BLOCK_ROWS: Final = 8192
"""Rows of the embedding and of the output matrix that are in memory at a time."""
_LOGIT_TOKENS: Final = 512
"""Tokens whose logits of these rows exist at a time."""
_CPU: Final = torch.device("cpu")


Rounding = Callable[[Tensor], Tensor]
"""Makes fp32 rows of a quantised weight of stored ones."""


@dataclass(frozen=True, slots=True)
class Outside:
    """What of a model is quantised outside of its layers."""

    table: Rounding | None = None
    """Of the embedding table."""
    head: Rounding | None = None
    """Of the output matrix."""
    activations: ActivationKind | None = None
    """What the inputs of the output matrix are rounded to where that is quantised."""


class LayerwiseModel:
    """Computes ``samples`` through layers that are built one at a time, in fp32."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: TensorMap,
        weights: CheckpointTensors,
        samples: Samples,
        outside: Outside | None = None,
        images: SampleImages | None = None,
    ) -> None:
        """``tensors``: as the checkpoint has them. Layers are those of this engine. ``outside``: what of the model
        outside of its layers is quantised; None: nothing. ``images``: those of ``samples``; None: there are none."""
        assert isinstance(config.decoder, DecoderSpec)
        self.spec: DecoderSpec = config.decoder
        self.samples = samples
        self._weights = weights
        self._outside = outside or Outside()
        self._images = images
        self._kv = replace(config.kv, num_layers=1)
        self.parameters = Parameters(weights, tensors)
        ropes = [(layer.attention.rope, layer.attention.rotary_width) for layer in self.spec.layers]
        positions = min(self.spec.max_positions, _MOST_POSITIONS)
        self._tables = {rope: RotaryTable(*rope, positions, _CPU) for rope in dict.fromkeys(ropes)}
        self._rope_of = ropes
        self._steps: dict[range, StepMetadata] = {}
        self._blocks = 0
        self._caches: KVCache = []
        """One cache, which each layer of each batch writes anew."""

    @torch.no_grad()
    def embedded(self, *, quantized: bool = False) -> Tensor:
        """What the first layer gets of all samples, [tokens, hidden]; ``quantized``: from the table as it will be."""
        ids = torch.cat(self.samples.token_ids)
        table = self.parameters.map.tensors["embedding"]
        rounded = self._outside.table if quantized else None
        x = (
            self._rows(table.name, ids, rounded)
            if table.plain
            else F.embedding(ids, self.parameters.tensor("embedding"))
        )
        x *= self.spec.embedding_scale
        if self.spec.positions is not None:
            positions = torch.cat([torch.arange(len(each)) for each in self.samples.token_ids])
            x += F.embedding(positions, self.parameters.tensor("positions"))
        if self._images is not None:
            self._images.feed(x)
        norm = self.spec.embedding_norm
        return x if norm is None else build_norm(norm, self.parameters, "embedding_norm")(x)

    @property
    def rounds_embeddings(self) -> bool:
        """Whether :meth:`embedded` differs where it is ``quantized``."""
        return self._outside.table is not None

    def _rows(self, name: str, ids: Tensor, rounded: Rounding | None) -> Tensor:
        """Rows ``ids`` of a tensor, fp32."""
        x, first = torch.empty(len(ids), self.spec.hidden_size), 0
        for rows in self._weights.row_blocks(name, _BLOCK_ROWS):
            here = ((ids >= first) & (ids < first + len(rows))).nonzero().flatten()
            some = rows[ids[here] - first]
            x[here] = some.float() if rounded is None or not len(some) else rounded(some)
            first += len(rows)
        return x

    def layer(self, index: int, method: LinearMethod) -> DecoderLayer:
        """Layer ``index`` with the weights as they are now."""
        return DecoderLayer(self.spec.layers[index], self.parameters, index, method)

    @torch.no_grad()
    def compute(self, layer: DecoderLayer, index: int, x: Tensor, batch: Batch) -> Tensor:
        """The states after layer ``index`` of those before, [tokens of the batch, hidden]."""
        step = self._step(batch)
        table = self._tables[self._rope_of[index]]
        added, residual = layer(x.clone(), None, table(step.positions, step.axis_positions), step)
        after = added + residual
        if self._images is not None:
            self._images.add_level(after, index, batch)
        return after

    @torch.no_grad()
    def loss(self, states: Tensor, some: range, *, quantized: bool = False) -> tuple[float, int]:
        """The summed cross entropy of each next token of ``some`` samples that is one of text, and how many these are.

        ``states``: [tokens of these samples, hidden] after the last layer; ``quantized``: with the output matrix as it
        will be.

        The output matrix passes once, some rows at a time: neither it nor the logits of a token are there as a whole.
        """
        ids = [self.samples.token_ids[index] for index in some]
        counted = [self.samples.is_text(index)[1:] for index in some]
        followed = torch.cat([F.pad(each, (0, 1)) for each in counted])
        targets = torch.cat([each[1:][text] for each, text in zip(ids, counted, strict=True)])
        hidden = self.normalised(states[followed])
        rounded = self._outside.head if quantized else None
        if rounded is not None and self._outside.activations is not None and len(hidden):
            hidden = Activations(self._outside.activations).rounded(hidden)
        whole = torch.full((len(targets),), -math.inf, dtype=torch.float64)
        """The logarithm of the sum of the exponentials of the logits so far."""
        hit = torch.zeros(len(targets), dtype=torch.float64)
        first = 0
        for rows, bias in self._head(rounded):
            last = first + len(rows)
            for begin in range(0, len(targets), _LOGIT_TOKENS):
                tokens = slice(begin, begin + _LOGIT_TOKENS)
                logits = self._logits(hidden[tokens], rows, bias)
                whole[tokens] = torch.logaddexp(whole[tokens], logits.logsumexp(1).double())
                here = ((targets[tokens] >= first) & (targets[tokens] < last)).nonzero().flatten()
                hit[begin + here] = logits[here, targets[begin + here] - first].double()
            first = last
        return float((whole - hit).sum()), len(targets)

    @torch.no_grad()
    def normalised(self, states: Tensor) -> Tensor:
        """The states after the last norm."""
        assert self.spec.final_norm is not None
        return build_norm(self.spec.final_norm, self.parameters, "norm")(states.clone()) if len(states) else states

    def _head(self, rounded: Rounding | None) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Rows of the output matrix in fp32, and of its bias, :data:`_BLOCK_ROWS` at a time."""
        linear = None if self.spec.tied else self.parameters.linear("head")
        weights = (self.parameters.map.tensors["embedding"],) if linear is None else linear.weights
        bias = self.parameters.read(linear.biases) if linear is not None and linear.bias else None
        if len(weights) == 1 and weights[0].plain:
            blocks = self._weights.row_blocks(weights[0].name, _BLOCK_ROWS)
        else:
            blocks = iter(torch.split(self.parameters.read(weights), _BLOCK_ROWS))
        first = 0
        for block in blocks:
            weight = block.float() if rounded is None else rounded(block)
            yield weight, None if bias is None else bias[first : first + len(block)]
            first += len(block)

    def _logits(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        logits = F.linear(hidden, weight, bias)
        logits *= self.spec.logits_scale
        cap = self.spec.logits_softcap
        return logits.div_(cap).tanh_().mul_(cap) if cap else logits

    def _step(self, batch: Batch) -> StepMetadata:
        """Whole samples as prefills, each in blocks of its own; all layers have the same cache."""
        if batch.samples not in self._steps:
            lengths = [len(self.samples.token_ids[index]) for index in batch.samples]
            blocks = [math.ceil(length / _BLOCK) for length in lengths]
            firsts = [sum(blocks[:index]) for index in range(len(blocks))]
            if sum(blocks) > self._blocks:
                self._blocks = sum(blocks)
                cache = allocate_kv_cache(self._kv, self._blocks, _BLOCK, _CPU, torch.float32)
                self._caches[:] = cache * len(self.spec.layers)
            table = torch.zeros(len(lengths), max(blocks), dtype=torch.int32)
            for slot, (first, count) in enumerate(zip(firsts, blocks, strict=True)):
                table[slot, :count] = torch.arange(first, first + count)
            positions = torch.cat([torch.arange(length) for length in lengths])
            slots = torch.cat(
                [torch.arange(length) + first * _BLOCK for first, length in zip(firsts, lengths, strict=True)]
            )
            ragged = RaggedBatch.of(torch.arange(len(lengths)), lengths, lengths)
            attention = prepare(ragged, table, self._caches[0][0], self.spec.num_heads)
            axes = None
            if self._images is not None and any(table.has_axes for table in self._tables.values()):
                axes = self._images.axis_positions(batch.samples)
            self._steps[batch.samples] = StepMetadata(positions, slots, attention, self._caches, axis_positions=axes)
        return self._steps[batch.samples]
