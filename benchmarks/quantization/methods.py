"""The forms that are compared: flags of ``blade_llm_quantize``, and fields of the engine's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

TABLES: Final = ("--quant_lm_head", "--quant_embedding")
GROUPS: Final = ("--block_wise_quant", "--block_size", "64")
BASELINE: Final = "bf16"
"""The row that others are divided by: the model as it is served without any of this."""


@dataclass(frozen=True)
class Method:
    """One row of the table."""

    name: str
    what: str
    """For a reader."""
    flags: tuple[str, ...] | None = None
    """Of ``blade_llm_quantize``; None: the model as it is."""
    calibrated: bool = False
    """It needs texts."""
    engine: Mapping[str, str] = field(default_factory=dict)
    """Fields of :class:`~blade_llm.config.EngineConfig`."""


def _weights(name: str, what: str, algorithm: str, *flags: str) -> Method:
    return Method(name, what, ("--quant_algo", algorithm, *flags), algorithm != "minmax")


def _both(name: str, what: str, algorithm: str, *flags: str) -> Method:
    return _weights(name, what, algorithm, "--quant_mode", "act_and_weight_quant", *flags)


def _cache(form: str) -> Method:
    return Method(f"kv-{form}", f"KV cache {form}", engine={"kv_cache_quant": form})


METHODS: Final = (
    Method("fp32", "unquantised, fp32", engine={"dtype": "float32"}),
    Method(BASELINE, "unquantised, bf16"),
    _weights("minmax-8", "weights 8 bits, to the nearest", "minmax", "--bit", "8"),
    _weights("minmax-4", "weights 4 bits, groups of 64, to the nearest", "minmax", "--bit", "4", *GROUPS),
    _weights("gptq-4", "weights 4 bits, groups of 64, GPTQ", "gptq", "--bit", "4", *GROUPS),
    _weights("gptq-4-head", "the same, output matrix 4 bits, embeddings 8", "gptq", "--bit", "4", *GROUPS, *TABLES),
    _weights("awq-4", "weights 4 bits, groups of 64, AWQ", "awq", "--bit", "4", *GROUPS),
    _weights("smoothquant+-4", "weights 4 bits, groups of 64, SmoothQuant+", "smoothquant+", "--bit", "4", *GROUPS),
    _weights("minmax-3", "weights 3 bits, a scale for each output, to the nearest", "minmax", "--bit", "3"),
    _weights("gptq-3", "weights 3 bits, a scale for each output, GPTQ", "gptq", "--bit", "3"),
    _both("w8a8-minmax", "W8A8, to the nearest", "minmax"),
    _both("w8a8-smoothquant", "W8A8, SmoothQuant", "smoothquant"),
    _both("w8a8-smoothquant_gptq", "W8A8, SmoothQuant and GPTQ", "smoothquant_gptq"),
    _weights("fp8", "weights fp8", "minmax", "--quant_dtype", "fp8"),
    _both("fp8-both", "weights and activations fp8", "minmax", "--quant_dtype", "fp8"),
    *map(_cache, ("int8", "int4", "int8_affine", "int4_affine", "fp8_e4m3", "fp8_e5m2")),
    *map(_cache, ("mix_f852i4", "mix_f843i4", "mix_i8i4", "mix_i4i4")),
)
