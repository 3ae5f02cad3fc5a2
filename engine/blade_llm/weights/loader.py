"""A loaded model from a configuration and a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from blade_llm.kernels.linear import pack
from blade_llm.kernels.linear.packed import Packer, Quantization
from blade_llm.layers.linear import LinearOptions
from blade_llm.models.config import ModelConfig
from blade_llm.models.families import require_supported
from blade_llm.models.llama import Llama
from blade_llm.models.registry import MODELS
from blade_llm.models.weight_source import WeightSource
from blade_llm.weights.packed_cache.loading import can_be_kept, load_with_packed
from blade_llm.weights.sources import DummyWeights, SafetensorsWeights


def load_model(
    model_dir: Path,
    config: ModelConfig,
    *,
    load_format: Literal["auto", "dummy"],
    max_positions: int,
    device: torch.device,
    dtype: torch.dtype,
    quant: Quantization = "none",
    deterministic: bool = False,
    packed_cache: tuple[Path, int] | None = None,
) -> Llama:
    """The model with its weights on ``device`` in ``dtype``, for sequences of up to ``max_positions`` tokens.

    ``quant``: of all linear layers; the embedding table stays as it is. ``deterministic``: their results for a token do
    not depend on the batch. ``packed_cache``: the folder where packed weights are kept, and the most bytes of it.

    Raises :class:`~blade_llm.models.errors.ModelFilesError` for an unknown architecture and for weights that are
    missing, truncated or of the wrong shape.
    """
    model_class = MODELS[require_supported(config.architecture)]

    def build(weights: WeightSource, packer: Packer) -> Llama:
        return model_class(config, weights, max_positions, LinearOptions(quant, deterministic, packer))

    if load_format == "dummy":
        return build(DummyWeights(config, device, dtype), pack)
    weights = SafetensorsWeights(model_dir, config, device, dtype)
    if packed_cache is None or not can_be_kept(device, dtype):
        return build(weights, pack)
    settings = (repr(config), quant, str(deterministic))
    return load_with_packed(*packed_cache, settings, weights, build)
