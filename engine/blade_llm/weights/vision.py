"""A vision tower with its weights, out of a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from blade_llm.layers.linear import LinearOptions
from blade_llm.models.linear_method import CheckpointWeights
from blade_llm.models.parameters import Parameters
from blade_llm.models.tensors import WantedPart
from blade_llm.models.vision.names import vision_tensors
from blade_llm.models.vision.tower import VisionTower
from blade_llm.models.weight_source import WeightSource
from blade_llm.spec.shard import Shard
from blade_llm.spec.vision.tower import VisionSpec
from blade_llm.weights.sources import DummyWeights, SafetensorsWeights


def load_tower(
    model_dir: Path,
    spec: VisionSpec,
    *,
    load_format: Literal["auto", "dummy"] = "auto",
    device: torch.device,
    dtype: torch.dtype,
    deterministic: bool = False,
    shard: Shard | None = None,
) -> VisionTower:
    """The tower ``spec`` of the model in ``model_dir``, on ``device`` in ``dtype``; its weights are never quantised
    here.

    ``shard``: the rank that reads it, of a folder that was split; the tower is whole on each.

    Raises :class:`~blade_llm.models.errors.ModelFilesError` for weights that are missing, truncated or of the wrong
    shape.
    """
    tensors = vision_tensors(spec)
    wanted = WantedPart(tensors, shard)
    source: WeightSource
    if load_format == "dummy":
        source = DummyWeights(wanted, device, dtype)
    else:
        source = weights = SafetensorsWeights(model_dir, wanted, device, dtype)
        tensors = tensors.found_in(weights.names)
    method = CheckpointWeights(LinearOptions(deterministic=deterministic))
    return VisionTower(spec, Parameters(source, tensors), method)
