"""What to change where a model does not fit: each candidate is planned like the configuration itself, and those that
fit are named with what they bring.

The order is what costs the least first: a shorter length, then a smaller KV cache, then more GPUs, then weights of
fewer bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from blade_llm.check.rank_memory import read_model
from blade_llm.config import MAX_RANKS, EngineConfig
from blade_llm.fit.estimate import Device, Estimate, estimate

SHORTEST: Final = 1024
"""No length below this is proposed."""
_MOST_RANKS: Final = 16
_FLAGS: Final[Mapping[str, str]] = {"tensor_parallel_size": "gpus"}
"""Fields whose flag of ``blade_llm_fit`` has another name."""


@dataclass(frozen=True, slots=True)
class Change:
    """Flags with which the model fits, and what there is then."""

    flags: str
    kv_tokens: int
    max_model_len: int
    concurrency: float


def changes(config: EngineConfig, device: Device, context: int | None = None) -> list[Change]:
    """The changes that make ``config`` fit, one of each kind; none where none does."""
    found = []
    for kind in _candidates(config, device):
        for fields in kind:
            if (fitting := _fitting(config, device, context, fields)) is not None:
                found.append(_change(config, fields, fitting))
                break
    return found


def _candidates(config: EngineConfig, device: Device) -> Iterator[list[dict[str, Any]]]:
    """Kinds of changes; of each its steps, the smallest first."""
    model = read_model(config)
    length = config.max_model_len or model.max_position_embeddings
    shorter: list[dict[str, Any]] = []
    while (length := length // 2) >= SHORTEST:
        shorter.append({"max_model_len": length})
    kv: list[dict[str, Any]] = []
    if config.kv_cache_quant == "no_quant" and model.kv.num_layers:
        kv = [{"kv_cache_quant": "int8"}, {"kv_cache_quant": "int4"}]
    more: list[dict[str, Any]] = []
    ranks = config.tensor_parallel_size
    while device.gpu is not None and (ranks := 2 * ranks) <= min(_MOST_RANKS, MAX_RANKS):
        more.append({"tensor_parallel_size": ranks})
    weights: list[dict[str, Any]] = []
    if config.quant == "none" and not model.tensors.quantized:
        weights = [{"quant": "int8"}, {"quant": "int4"}]
    yield shorter
    yield kv
    yield more
    yield weights
    yield [{**one, **other} for one in weights for other in kv[:1]]


def _fitting(config: EngineConfig, device: Device, context: int | None, fields: Mapping[str, Any]) -> Estimate | None:
    """The estimate with ``fields`` changed, where that fits."""
    length = fields.get("max_model_len")
    if context is not None and length is not None and context > length:
        return None
    try:
        found = estimate(msgspec.structs.replace(config, **fields), device, context)
    except ValueError:  # ranks that cannot divide it, a method that the model does not take
        return None
    return found if found.fits else None


def _change(config: EngineConfig, fields: Mapping[str, Any], found: Estimate) -> Change:
    flags = []
    for name, value in fields.items():
        count = value * config.pipeline_parallel_size if name == "tensor_parallel_size" else value
        flags.append(f"--{_FLAGS.get(name, name)} {count}")
    return Change(" ".join(flags), found.kv_tokens, found.max_model_len, found.concurrency)
