"""A loaded model from a configuration and a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from blade_llm.kernels.linear.packed import Quantization
from blade_llm.layers.linear import LinearOptions
from blade_llm.models.config import ModelConfig
from blade_llm.models.decoder import Decoder
from blade_llm.models.encoder import Encoder
from blade_llm.models.linear_method import PlainWeights
from blade_llm.models.parameters import Parameters
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
) -> Decoder | Encoder:
    """The model with its weights on ``device`` in ``dtype``, for sequences of up to ``max_positions`` tokens.

    ``quant``: of all linear layers; the embedding table stays as it is. ``deterministic``: their results for a token do
    not depend on the batch.

    Raises :class:`~blade_llm.models.errors.ModelFilesError` for weights that are missing, truncated or of the wrong
    shape.
    """
    method = PlainWeights(LinearOptions(quant, deterministic))
    if load_format == "dummy":
        parameters = Parameters(DummyWeights(config, device, dtype), config.tensors)
    else:
        weights = SafetensorsWeights(model_dir, config, device, dtype)
        parameters = Parameters(weights, config.tensors.found_in(weights.names))
    if config.decoder.bidirectional:
        return Encoder(config.decoder, parameters, method)
    return Decoder(config.decoder, parameters, max_positions, method)
