"""Which form the KV cache of a model gets for ``--kv_cache_quant``. The server and ``blade_llm_check`` ask here alike.

What a model cannot have, it is served without, and a warning says so: as BladeLLM does, so that one setting can go with
all models of a service. A number of parts that does not divide its heads is an error: that is about this model alone.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from blade_llm.kv_quant import KVCacheQuant, KVQuant
from blade_llm.models.config import ModelConfig
from blade_llm.models.errors import UnsupportedSettingError

logger = logging.getLogger(__name__)


def with_kv_quant(model: ModelConfig, requested: KVCacheQuant, sub_heads: int = 1, whose: str = "") -> ModelConfig:
    """``model`` with the cache that is requested, or as it is where it cannot have that (:func:`kv_quant_problem`).
    ``whose``: the prefix of the flags.

    Raises :class:`~blade_llm.models.errors.UnsupportedSettingError` where ``sub_heads`` does not divide a head.
    """
    if requested == "no_quant" or kv_quant_problem(model, requested):
        return model
    quant = KVQuant.of(requested, sub_heads)
    if problem := quant.problem(model.kv.head_dim):
        raise UnsupportedSettingError(f"--{whose}{problem}")
    return replace(model, kv=replace(model.kv, quant=quant))


def kv_quant_problem(model: ModelConfig, requested: KVCacheQuant) -> str | None:
    """The warning for a model that is served without what is requested; None where it can have it."""
    if requested == "no_quant":
        return None
    if not model.kv.num_layers:
        reason = "the model is an encoder, which keeps no keys and values"
    elif model.kv.value_part:
        reason = (
            "multi-head latent attention keeps one compressed vector for keys and values, smaller than theirs would "
            "be in 4 bits"
        )
    else:
        return None
    return f"--kv_cache_quant {requested} changes nothing (no_quant): {reason}"


def warn_of_kv_quant(model: ModelConfig, requested: KVCacheQuant, whose: str = "") -> None:
    """Log :func:`kv_quant_problem`; ``whose``: the prefix of the flag."""
    if problem := kv_quant_problem(model, requested):
        logger.warning("%s", problem.replace("--", f"--{whose}", 1))
