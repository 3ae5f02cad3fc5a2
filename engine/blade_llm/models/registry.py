"""From an architecture's name to the class that computes it, and a loaded model from a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import torch

from blade_llm.kernels.linear import Quantization
from blade_llm.layers.linear import LinearOptions
from blade_llm.models.config import ModelConfig
from blade_llm.models.families import require_supported
from blade_llm.models.llama import Llama
from blade_llm.models.loader import DummyWeights, SafetensorsWeights, Weights
from blade_llm.models.qwen2 import Qwen2

MODELS: Final[dict[str, type[Llama]]] = {"llama": Llama, "qwen2": Qwen2}
"""Family (as in :mod:`blade_llm.models.families`) to class."""


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
    weights: Weights
    if load_format == "dummy":
        weights = DummyWeights(config, device, dtype)
    else:
        weights = SafetensorsWeights(model_dir, config, device, dtype)
    return model_class(config, weights, max_positions, LinearOptions(quant, deterministic))
