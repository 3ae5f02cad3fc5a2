"""The vision tower at the start of a runner: loading it, and the memory that it needs."""

from __future__ import annotations

import logging
from typing import Final

import torch

from blade_llm.config import EngineConfig
from blade_llm.models.config import ModelConfig
from blade_llm.models.dtypes import DTYPE_BYTES, DTypeName
from blade_llm.models.vision.memory import activation_bytes
from blade_llm.parallel.layout import RankLayout
from blade_llm.runner.vision.images import RunnerImages, grid_of
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.spec.vision.tower import VisionSpec
from blade_llm.weights.vision import load_tower

logger = logging.getLogger(__name__)
_LARGEST: Final = 16384
"""Embeddings of the largest image that memory is planned for: what the families' processors allow."""


def tower_of(config: EngineConfig, model: ModelConfig) -> VisionSpec | None:
    """The tower that the engine runs; None: it serves text alone, for want of one, or as several ranks compute the
    model."""
    return model.vision if RankLayout.of(config).size == 1 else None


def embedding_bytes(spec: VisionSpec, dtype: DTypeName) -> int:
    """What the embedding of one image token takes, deepstack levels included."""
    return spec.hidden_size * DTYPE_BYTES[dtype] * (1 + spec.levels)


def encoder_bytes(config: EngineConfig, model: ModelConfig, dtype: DTypeName, max_model_len: int) -> int:
    """What images take on the device at most: the encoder cache, and encoding the largest one that fits into it and
    into a prompt. 0 of a model without images."""
    spec = tower_of(config, model)
    if spec is None:
        return 0
    tokens = max(1, min(_LARGEST, max_model_len, config.encoder_cache_bytes // embedding_bytes(spec, dtype)))
    return config.encoder_cache_bytes + activation_bytes(spec, dtype, [grid_of(spec, tokens)])


def load_images(
    config: EngineConfig, model: ModelConfig, device: torch.device, dtype: torch.dtype
) -> RunnerImages | None:
    """The images of a runner, with the tower of ``model``; None where it has none. Raises
    :class:`~blade_llm.models.errors.ModelFilesError`."""
    spec = tower_of(config, model)
    if spec is None:
        if model.vision is not None:
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


def has_axes(config: ModelConfig) -> bool:
    """Whether positions have three axes."""
    decoder = config.decoder
    if not isinstance(decoder, DecoderSpec):
        return False
    ropes = [layer.attention.rope for layer in decoder.layers]
    return any(rope is not None and rope.sections is not None for rope in ropes)
