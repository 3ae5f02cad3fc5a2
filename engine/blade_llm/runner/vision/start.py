"""The vision tower at the start of a runner."""

from __future__ import annotations

import logging

import torch

from blade_llm.config import EngineConfig
from blade_llm.models.config import ModelConfig
from blade_llm.runner.vision.images import RunnerImages
from blade_llm.runner.vision.memory import has_axes, tower_of
from blade_llm.weights.vision import load_tower

logger = logging.getLogger(__name__)


def load_images(
    config: EngineConfig, model: ModelConfig, device: torch.device, dtype: torch.dtype
) -> RunnerImages | None:
    """The images of a runner, with the tower of ``model``; None where it has none. Raises
    :class:`~blade_llm.models.errors.ModelFilesError`."""
    spec = tower_of(config, model)
    if spec is None:
        if model.vision is not None and config.with_visual:
            logger.warning("images are refused: several ranks compute the model, and its vision tower runs on one")
        return None
    tower = load_tower(
        config.model_dir,
        spec,
        load_format=config.load_format,
        device=device,
        dtype=dtype,
        deterministic=config.deterministic,
        shard=model.shard,
    )
    images = RunnerImages(tower, device, has_axes=has_axes(model))
    images.warm_up()
    return images
