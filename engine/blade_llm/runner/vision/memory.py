"""What images take of a device's memory. No torch: ``blade_llm_check`` and ``blade_llm_fit`` plan with it."""

from __future__ import annotations

import math

from blade_llm.config import EngineConfig
from blade_llm.models.config import ModelConfig
from blade_llm.models.dtypes import DTYPE_BYTES, DTypeName
from blade_llm.models.vision.memory import activation_bytes
from blade_llm.scheduling.images.limits import MAX_RUN_IMAGES, MAX_RUN_TOKENS
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.spec.vision.tower import Grid, VisionSpec


def vision_of(config: EngineConfig, model: ModelConfig) -> VisionSpec | None:
    """What embeds images for ``model``; None: they are refused, for want of a tower or by ``with_visual``."""
    return model.vision if config.with_visual else None


def tower_of(config: EngineConfig, model: ModelConfig) -> VisionSpec | None:
    """:func:`vision_of` where this rank computes it, whole; None also in a stage of a pipeline whose layers are not fed
    with embeddings."""
    spec, stage = vision_of(config, model), model.stage
    if spec is None or stage is None or stage.first:
        return spec
    return spec if stage.layers.start < spec.levels else None


def encoder_bytes(config: EngineConfig, model: ModelConfig, dtype: DTypeName, max_model_len: int) -> int:
    """What images take on the device at most: the encoder cache, a run of the tower, and the table of positions. 0 of a
    model without images; of a stage without the tower the table alone."""
    if vision_of(config, model) is None:
        return 0
    positions = table_bytes(config.max_num_seqs + 1, max_model_len) if has_axes(model) else 0
    spec = tower_of(config, model)
    if spec is None:
        return positions
    encoding = activation_bytes(spec, dtype, _largest(spec, run_tokens(config, spec, dtype, max_model_len)))
    return config.encoder_cache_bytes + encoding + positions


def run_tokens(config: EngineConfig, spec: VisionSpec, dtype: DTypeName, max_model_len: int) -> int:
    """Embeddings of one run of the tower at most: of the largest image that fits into the encoder cache and into a
    prompt."""
    cached = config.encoder_cache_bytes // (spec.embedding_elements * DTYPE_BYTES[dtype])
    return max(1, min(MAX_RUN_TOKENS, max_model_len, cached))


def grid_of(spec: VisionSpec, count: int) -> Grid:
    """Of an image of about ``count`` embeddings: a square, or tiles."""
    if spec.positions is not None and not spec.positions.interpolated:
        side = spec.positions.side
        return max(1, count // spec.count((1, side, side))), side, side
    side = spec.merge_size * math.isqrt(count)
    return 1, side, side


def _largest(spec: VisionSpec, count: int) -> list[Grid]:
    """Of images that take as much memory as any that have ``count`` embeddings together."""
    if spec.positions is None or spec.positions.interpolated:
        return [(1, spec.merge_size, spec.merge_size * count)]
    tiles, side, _ = grid_of(spec, count)
    alone = min(tiles, MAX_RUN_IMAGES) - 1
    return [(1, side, side)] * alone + [(tiles - alone, side, side)]


def table_bytes(num_slots: int, max_positions: int) -> int:
    """Bytes that a table of positions on three axes takes."""
    return 4 * (3 * num_slots + 1) * max_positions


def has_axes(config: ModelConfig) -> bool:
    """Whether positions have three axes."""
    decoder = config.decoder
    if not isinstance(decoder, DecoderSpec):
        return False
    ropes = [layer.attention.rope for layer in decoder.layers]
    return any(rope is not None and rope.sections is not None for rope in ropes)
