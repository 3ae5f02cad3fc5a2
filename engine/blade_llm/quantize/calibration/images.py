"""The images of calibration's samples: what a model with a vision tower computes of them outside of its layers."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from blade_llm.layers.linear import LinearOptions
from blade_llm.models.config import ModelConfig
from blade_llm.models.linear_method import CheckpointWeights
from blade_llm.models.parameters import Parameters
from blade_llm.models.vision.axis_positions import axis_positions
from blade_llm.models.vision.names import vision_tensors
from blade_llm.models.vision.tower import VisionTower
from blade_llm.quantize.calibration.samples import Batch, Samples
from blade_llm.quantize.calibration.weights import CheckpointTensors
from blade_llm.quantize.source import TensorReader
from blade_llm.spec.vision.tower import VisionSpec


def images_of(samples: Samples, config: ModelConfig, reader: TensorReader) -> SampleImages | None:
    """The images of ``samples``, whose tower computes in the type that a server on a CPU would take; None: they have
    none."""
    if not samples.images:
        return None
    assert config.vision is not None
    return SampleImages(samples, config.vision, reader, torch.float32 if config.dtype == "float32" else torch.bfloat16)


class SampleImages:
    """The images of all ``samples``, of which at least one has some."""

    def __init__(self, samples: Samples, spec: VisionSpec, reader: TensorReader, dtype: torch.dtype) -> None:
        """``dtype``: of the tower, whose weights are never quantised here."""
        self._samples = samples
        self._spec = spec
        self._reader = reader
        self._dtype = dtype
        is_text = torch.cat([samples.is_text(index) for index in range(len(samples.token_ids))])
        self._rows = (~is_text).nonzero().flatten()
        """[n] int64: image tokens, among the tokens of all samples."""

    def feed(self, x: Tensor) -> None:
        """Put embeddings into ``x``, [tokens of all samples, hidden]."""
        x.index_copy_(0, self._rows, self._embeddings[0].to(x.dtype))

    def add_level(self, x: Tensor, layer: int, batch: Batch) -> None:
        """Add to the states after ``layer``, [tokens of the batch, hidden], what image tokens get there (DeepStack)."""
        if layer >= self._spec.levels:
            return
        first, last = torch.searchsorted(self._rows, torch.tensor([batch.rows.start, batch.rows.stop])).tolist()
        level = self._embeddings[1 + layer, first:last].to(x.dtype)
        x.index_add_(0, self._rows[first:last] - batch.rows.start, level)

    def axis_positions(self, some: range) -> Tensor:
        """Positions of the tokens of ``some`` samples on three axes, [3, tokens] int64."""
        merge_size = self._spec.merge_size
        ids, images = self._samples.token_ids, self._samples.images
        found = [axis_positions(len(ids[index]), images[index], merge_size)[0] for index in some]
        return torch.cat([torch.from_numpy(each) for each in found], dim=1).long()

    @cached_property
    def _embeddings(self) -> Tensor:
        """[1 + levels, n, hidden], computed once: the tower is in memory only meanwhile."""
        tensors = vision_tensors(self._spec).found_in(self._reader.checkpoint.tensors)
        weights = CheckpointTensors(self._reader, self._dtype)
        tower = VisionTower(self._spec, Parameters(weights, tensors), CheckpointWeights(LinearOptions()))
        made: dict[bytes, Tensor] = {}
        for digest, pixels in self._samples.pixels.items():
            state = tower.begin([pixels])
            while state.remaining:
                tower.advance(state, state.remaining)
            (made[digest],) = tower.embeddings(state)
        return torch.cat([made[image.digest] for images in self._samples.images for image in images], dim=1)
