"""``config.json`` of a quantised checkpoint: the source's, and what compressed-tensors calls what was done."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from blade_llm.models.errors import ModelFilesError
from blade_llm.models.families.registry import CLASSIFIERS, EMBEDDING_ONLY
from blade_llm.quantize.options import QuantizeOptions
from blade_llm.quantize.plan import Plan
from blade_llm.quantize.tied_head import untied

CONFIG_NAME: Final = "config.json"
_NAMES: Final = ("quantization_config", "compression_config")


def quantization_config(options: QuantizeOptions, plan: Plan) -> dict[str, Any]:
    """The ``quantization_config``: every linear layer but those to be ignored, and perhaps the embedding table."""
    groups = {"group_0": _group(options, ["Linear"], _activations(options))}
    if plan.table is not None:
        groups["group_1"] = _group(options.for_table, [plan.table], None)
    formats = {group["format"] for group in groups.values()}
    return {
        "quant_method": "compressed-tensors",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": list(plan.ignore),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def _group(options: QuantizeOptions, targets: list[str], activations: dict[str, Any] | None) -> dict[str, Any]:
    weights: dict[str, Any] = {
        "num_bits": options.bits,
        "type": "float" if options.dtype == "fp8" else "int",
        "symmetric": options.symmetric,
        "strategy": "channel" if options.group_size is None else "group",
        "group_size": options.group_size,
        "block_structure": None,
        "dynamic": False,
        # In which order they were rounded; groups are consecutive inputs with and without.
        "actorder": "weight" if options.uses_gptq and options.act_order and options.group_size else None,
        "observer": "minmax",
        "observer_kwargs": {},
    }
    return {
        "targets": targets,
        "weights": weights,
        "input_activations": activations,
        "output_activations": None,
        "format": options.format,
    }


def _activations(options: QuantizeOptions) -> dict[str, Any] | None:
    """How inputs are rounded: each token with a scale of its own."""
    if not options.activations:
        return None
    return {
        "num_bits": options.bits,
        "type": "float" if options.dtype == "fp8" else "int",
        "symmetric": True,
        "strategy": "token",
        "group_size": None,
        "block_structure": None,
        "dynamic": True,
        "actorder": None,
        "observer": None,
        "observer_kwargs": {},
    }


def new_config(source: Mapping[str, Any], options: QuantizeOptions, plan: Plan) -> bytes:
    """The new ``config.json``."""
    source = source if plan.untied is None else untied(source)
    fields = {**source, "quantization_config": quantization_config(options, plan)}
    return json.dumps(fields, indent=2, ensure_ascii=False).encode() + b"\n"


def require_unquantized(folder: object, source: Mapping[str, Any]) -> None:
    """Raise :class:`~blade_llm.models.errors.ModelFilesError` for the ``config.json`` of a quantised checkpoint."""
    places = [source, *(each for each in source.values() if isinstance(each, dict))]
    found = next((each[name] for each in places for name in _NAMES if each.get(name)), None)
    if found is not None:
        method = found.get("quant_method", "compressed-tensors") if isinstance(found, dict) else found
        raise ModelFilesError(
            f"{folder} is quantised already ({method}); the server loads it as it is, or quantise the original"
        )


def require_generative(folder: object, source: Mapping[str, Any]) -> None:
    """Raise :class:`~blade_llm.models.errors.ModelFilesError` for the ``config.json`` of a model that makes embeddings
    or scores alone."""
    architectures = source.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else None
    if isinstance(name, str) and (name in EMBEDDING_ONLY or name in CLASSIFIERS):
        raise ModelFilesError(
            f"{folder}: {name} generates no text, and only models that generate text are quantised; the server loads "
            "it as it is"
        )
