"""A loaded model from a configuration and a model folder."""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path
from typing import Literal

import torch

from blade_llm.kernels.linear.packed import Quantization
from blade_llm.layers.linear import LinearOptions
from blade_llm.models.config import ModelConfig
from blade_llm.models.decoder import Decoder
from blade_llm.models.linear_method import PlainWeights
from blade_llm.models.model import Model
from blade_llm.models.parameters import Parameters
from blade_llm.models.tensors import expected_tensors
from blade_llm.spec.modules import ModulesSpec
from blade_llm.weights.sources import DummyWeights, SafetensorsWeights

logger = logging.getLogger(__name__)


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
) -> Model:
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
        _name_unread(config, weights.names)
    if isinstance(config.decoder, ModulesSpec):
        from blade_llm.models.transformers_modules.model import TransformersModel  # seconds to import

        return TransformersModel(config.decoder, parameters, device, dtype, method)
    return Decoder(config.decoder, parameters, max_positions, method)


def _name_unread(config: ModelConfig, names: Collection[str]) -> None:
    """A tensor that no module of transformers' takes may be a part of the model that is not computed."""
    if not isinstance(config.decoder, ModulesSpec):
        return
    unread = sorted(set(names) - set(expected_tensors(config, names)) - config.decoder.shared_names)
    if unread:
        some = ", ".join(unread[:5])
        logger.warning("%d tensors of the checkpoint are not read by %s: %s", len(unread), config.architecture, some)
