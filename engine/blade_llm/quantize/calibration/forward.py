"""The model computed layer by layer: embedding, one decoder layer at a time, and what follows the last."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from blade_llm.kernels.paged_attention import RaggedBatch, prepare
from blade_llm.layers.rope import RotaryTable
from blade_llm.layers.step import KVCache, StepMetadata
from blade_llm.models.config import ModelConfig
from blade_llm.models.decoder_layer import DecoderLayer, build_norm
from blade_llm.models.linear_method import LinearMethod
from blade_llm.models.parameters import Parameters
from blade_llm.quantize.calibration.samples import Batch, Samples
from blade_llm.quantize.calibration.weights import CheckpointTensors
from blade_llm.runner.kv_cache import allocate_kv_cache
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.spec.tensors import TensorMap

_BLOCK: Final = 16
_MOST_POSITIONS: Final = 1 << 17
_LOGIT_ELEMENTS: Final = 1 << 25
"""Logits that exist at a time."""
_HEAD_ROWS: Final = 8192
"""Rows of the output matrix that are in fp32 at a time."""
_CPU: Final = torch.device("cpu")


class LayerwiseModel:
    """Computes ``samples`` through layers that are built one at a time, in fp32."""

    def __init__(self, config: ModelConfig, tensors: TensorMap, weights: CheckpointTensors, samples: Samples) -> None:
        """``tensors``: as the checkpoint has them. Layers are those of this engine."""
        assert isinstance(config.decoder, DecoderSpec)
        self.spec: DecoderSpec = config.decoder
        self.samples = samples
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
    def embedded(self) -> Tensor:
        """What the first layer gets of all samples, [tokens, hidden]."""
        ids = torch.cat(self.samples.token_ids)
        table = self.parameters.map.tensors["embedding"]
        stored = self.parameters.source.stored(table.name)
        x = F.embedding(ids, stored).float() if table.plain else F.embedding(ids, self.parameters.tensor("embedding"))
        del stored
        x *= self.spec.embedding_scale
        if self.spec.positions is not None:
            positions = torch.cat([torch.arange(len(each)) for each in self.samples.token_ids])
            x += F.embedding(positions, self.parameters.tensor("positions"))
        norm = self.spec.embedding_norm
        return x if norm is None else build_norm(norm, self.parameters, "embedding_norm")(x)

    def layer(self, index: int, method: LinearMethod) -> DecoderLayer:
        """Layer ``index`` with the weights as they are now."""
        return DecoderLayer(self.spec.layers[index], self.parameters, index, method)

    @torch.no_grad()
    def compute(self, layer: DecoderLayer, index: int, x: Tensor, batch: Batch) -> Tensor:
        """The states after layer ``index`` of those before, [tokens of the batch, hidden]."""
        step = self._step(batch)
        table = self._tables[self._rope_of[index]]
        added, residual = layer(x.clone(), None, table(step.positions), step)
        return added + residual

    @torch.no_grad()
    def loss(self, states: Tensor, some: range) -> tuple[float, int]:
        """The summed cross entropy of each next token of ``some`` samples, and how many tokens these are. ``states``:
        [tokens of these samples, hidden] after the last layer."""
        head = self.head()
        total, count, begin = 0.0, 0, 0
        rows = max(1, _LOGIT_ELEMENTS // self.spec.vocab_size)
        for index in some:
            ids = self.samples.token_ids[index]
            hidden = self.normalised(states[begin : begin + len(ids) - 1])
            begin += len(ids)
            for first in range(0, len(ids) - 1, rows):
                logits = self._logits(hidden[first : first + rows], *head)
                targets = ids[1:][first : first + rows]
                total += float(F.cross_entropy(logits, targets, reduction="none").double().sum())
                count += len(targets)
        return total, count

    @torch.no_grad()
    def normalised(self, states: Tensor) -> Tensor:
        """The states after the last norm."""
        assert self.spec.final_norm is not None
        return build_norm(self.spec.final_norm, self.parameters, "norm")(states.clone()) if len(states) else states

    def head(self) -> tuple[Tensor, Tensor | None]:
        """Weight, in the type that the checkpoint has it in, and bias of the output matrix."""
        linear = None if self.spec.tied else self.parameters.linear("head")
        weights = (self.parameters.map.tensors["embedding"],) if linear is None else linear.weights
        bias = self.parameters.read(linear.biases) if linear is not None and linear.bias else None
        if len(weights) == 1 and weights[0].plain:
            return self.parameters.source.stored(weights[0].name), bias
        return self.parameters.read(weights), bias

    def _logits(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        logits = torch.empty(len(hidden), len(weight))
        for first in range(0, len(weight), _HEAD_ROWS):  # a whole output matrix in fp32 would be larger than layers
            rows = slice(first, first + _HEAD_ROWS)
            torch.mm(hidden, weight[rows].float().T, out=logits[:, rows])
        if bias is not None:
            logits += bias
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
            self._steps[batch.samples] = StepMetadata(positions, slots, attention, self._caches)
        return self._steps[batch.samples]
