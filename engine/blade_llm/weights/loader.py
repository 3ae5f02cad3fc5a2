"""A loaded model from a configuration and a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from blade_llm.kernels.linear.packed import Quantization
from blade_llm.layers.linear import LinearOptions
from blade_llm.models.config import ModelConfig
from blade_llm.models.families import require_supported
from blade_llm.models.llama import Llama
from blade_llm.models.registry import MODELS
from blade_llm.models.weight_source import WeightSource
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
) -> Llama:
    """The model with its weights on ``device`` in ``dtype``, for sequences of up to ``max_positions`` tokens.

    ``quant``: of all linear layers; the embedding table stays as it is. ``deterministic``: their results for a token do
    not depend on the batch.

    Raises :class:`~blade_llm.models.errors.ModelFilesError` for an unknown architecture and for weights that are
    missing, truncated or of the wrong shape.
    """
    model_class = MODELS[require_supported(config.architecture)]
    weights: WeightSource
    if load_format == "dummy":
        weights = DummyWeights(config, device, dtype)
    else:
        weights = SafetensorsWeights(model_dir, config, device, dtype)
    return model_class(config, weights, max_positions, LinearOptions(quant, deterministic))
