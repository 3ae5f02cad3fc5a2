"""A loaded model from a configuration and a model folder."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from blade_llm.kernels.linear import pack
from blade_llm.kernels.linear.packed import Packer, Quantization
from blade_llm.layers.linear import LinearOptions
from blade_llm.models.config import ModelConfig
from blade_llm.models.decoder import Decoder
from blade_llm.models.encoder import Encoder
from blade_llm.models.heads.head import Eagle3Head, MTPHead
from blade_llm.models.linear_method import CheckpointWeights, LinearMethod
from blade_llm.models.model import Model
from blade_llm.models.parameters import Parameters
from blade_llm.models.quantized.summary import describe, unrounded
from blade_llm.models.weight_source import WeightSource
from blade_llm.parallel.group import RankGroup
from blade_llm.parallel.link import StageLink
from blade_llm.spec.modules import ModulesSpec
from blade_llm.spec.tensors import TensorMap
from blade_llm.weights.packed_cache.loading import can_be_kept, load_with_packed
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
    packed_cache: tuple[Path, int] | None = None,
    wrap: Callable[[LinearMethod, TensorMap], LinearMethod] | None = None,
    target: Model | None = None,
    group: RankGroup | None = None,
    link: StageLink | None = None,
) -> Model:
    """The model with its weights on ``device`` in ``dtype``, for sequences of up to ``max_positions`` tokens.

    ``quant``: of all linear layers; the embedding table stays as it is. ``deterministic``: their results for a token do
    not depend on the batch. ``packed_cache``: the folder where packed weights are kept, and the most bytes of it;
    those of transformers' modules are not. ``wrap``: makes of the linear method, and the tensor map in use, one whose
    layers do more. ``target``: the model that a head drafts for. ``group``: the ranks that compute the model together,
    of which ``config`` is this one's (:func:`blade_llm.models.sharding.shard_model`), or of a head the whole one.
    ``link``: to the stages before and after, where ``config`` is that of a stage.

    Raises :class:`~blade_llm.models.errors.ModelFilesError` for weights that are missing, truncated or of the wrong
    shape.
    """

    def build(source: WeightSource, tensors: TensorMap, packer: Packer) -> Model:
        of_checkpoint = CheckpointWeights(LinearOptions(quant, deterministic, packer))
        model = make(source, tensors, of_checkpoint if wrap is None else wrap(of_checkpoint, tensors))
        _warn_of_floats(of_checkpoint)
        return model

    def make(source: WeightSource, tensors: TensorMap, method: LinearMethod) -> Model:
        if isinstance(config.decoder, ModulesSpec):
            from blade_llm.models.transformers_modules.model import TransformersModel  # seconds to import

            return TransformersModel(config.decoder, Parameters(source, tensors), device, dtype, method)
        if config.decoder.bidirectional:
            return Encoder(config.decoder, Parameters(source, tensors), method)
        if config.decoder.prediction is not None:
            assert isinstance(target, Decoder), "heads are read for decoders"
            head = MTPHead if config.decoder.prediction.kind == "mtp" else Eagle3Head
            # One that the ranks cannot divide is whole on each of them.
            among = None if config.shard is None else group
            return head(config.decoder, Parameters(source, tensors), max_positions, method, target, among)
        return Decoder(config.decoder, Parameters(source, tensors), max_positions, method, group, link)

    if load_format == "dummy":
        return build(DummyWeights(config, device, dtype), config.tensors, pack)
    weights = SafetensorsWeights(model_dir, config, device, dtype)
    tensors = config.tensors.found_in(weights.names)
    _log_forms(tensors)
    if packed_cache is None or isinstance(config.decoder, ModulesSpec) or not can_be_kept(device, dtype):
        return build(weights, tensors, pack)
    forms = [f"{part.module} {part.form}" for part in tensors.linear_parts() if part.form is not None]
    packed = replace(config, kv=replace(config.kv, quant=None))  # weights are the same whatever the KV cache
    settings = (repr(packed), quant, str(deterministic), *forms)
    return load_with_packed(*packed_cache, settings, weights, lambda source, packer: build(source, tensors, packer))


def _log_forms(tensors: TensorMap) -> None:
    """Say what is computed of weights that the checkpoint has quantised."""
    if said := describe(tensors):
        logger.info("%s", said)
    for problem in unrounded(tensors):
        logger.warning("%s", problem)


def _warn_of_floats(method: CheckpointWeights) -> None:
    """Say which quantised weights are slow. Few people would expect it of a smaller checkpoint."""
    if not method.as_floats:
        return
    logger.warning(
        "%d quantised weights become floats each time they are multiplied (%s), which is many times slower for few "
        "tokens; fast are, on a CPU in bf16, integers and FP8 in whole rows or groups of a multiple of 32 inputs",
        method.as_floats.total(),
        ", ".join(sorted(method.as_floats)),
    )
