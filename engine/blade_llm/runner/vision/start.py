"""The vision tower at the start of a runner."""

from __future__ import annotations

import torch

from blade_llm.config import EngineConfig
from blade_llm.models.config import ModelConfig
from blade_llm.models.vision.tower import VisionTower
from blade_llm.runner.vision.images import RunnerImages
from blade_llm.runner.vision.memory import has_axes, tower_of, vision_of
from blade_llm.weights.vision import load_tower


def load_images(
    config: EngineConfig, model: ModelConfig, device: torch.device, dtype: torch.dtype
) -> RunnerImages | None:
    """The images of a runner, with the tower of ``model`` where it computes any; None where images are refused. Raises
    :class:`~blade_llm.models.errors.ModelFilesError`."""
    spec = vision_of(config, model)
    if spec is None:
        return None
    tower: VisionTower | None = None
    if tower_of(config, model) is not None:
        tower = load_tower(
            config.model_dir,
            spec,
            load_format=config.load_format,
            device=device,
            dtype=dtype,
            deterministic=config.deterministic,
            shard=model.shard,
        )
    first_layer = 0 if model.stage is None else model.stage.layers.start
    images = RunnerImages(spec, tower, device, has_axes=has_axes(model), first_layer=first_layer)
    images.warm_up()
    return images
