"""What checkpoints of 8-bit floats say of themselves: those of DeepSeek and Qwen, of vLLM's ``fp8`` and of FBGEMM."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from blade_llm.models.errors import UnsupportedModelError
from blade_llm.models.quantized.fields import is_named, parse
from blade_llm.spec.quantization.weights import ActivationForm, Float8Form

_FORMATS: Final = ("e4m3", "float8_e4m3fn")


class _Float8(msgspec.Struct, frozen=True):
    fmt: str = "e4m3"
    weight_block_size: list[int] | None = None
    activation_scheme: str = "dynamic"
    activation_scale_ub: float | None = None
    """The largest magnitude of a token that its scale is made for."""
    modules_to_not_convert: list[str] = []
    ignored_layers: list[str] = []


def read_float8(fields: Mapping[str, Any]) -> Callable[[str], Float8Form | None]:
    """The form of each module: in blocks where these are given, else with one scale a weight. The output
    matrix is plain. Activations are rounded as ``activation_scheme`` says; dynamically, with one scale a token, or in
    blocks for each block of its inputs.

    Raises :class:`UnsupportedModelError` for another format than e4m3, ``ValueError`` for senseless fields.
    """
    config = parse(fields, _Float8)
    if config.fmt not in _FORMATS:
        raise UnsupportedModelError(f"FP8's 'fmt' {config.fmt!r} is not supported; 'e4m3' is")
    if config.activation_scheme not in ("dynamic", "static"):
        raise UnsupportedModelError(
            f"FP8's 'activation_scheme' {config.activation_scheme!r} is not supported; 'dynamic' and 'static' are"
        )
    scale = "input_scale" if config.activation_scheme == "static" else None
    most = _bound(config)
    if most is not None and (scale is not None or config.weight_block_size is not None):
        where = "'activation_scheme' 'static'" if scale is not None else "'weight_block_size'"
        raise UnsupportedModelError(
            f"FP8's 'activation_scale_ub' with {where} is not supported; it bounds the scales of whole tokens"
        )
    if config.weight_block_size is None:
        return _outside_of(config, Float8Form(None, None, activations=ActivationForm("fp8", scale, most=most)))
    if len(config.weight_block_size) != 2 or min(config.weight_block_size) < 1:
        raise ValueError(
            f"'quantization_config': 'weight_block_size' must be two positive integers, not {config.weight_block_size}"
        )
    rows, columns = config.weight_block_size
    activations = ActivationForm("fp8", scale, columns if scale is None else None)
    return _outside_of(config, Float8Form(rows, columns, "weight_scale_inv", activations))


def read_fbgemm(fields: Mapping[str, Any]) -> Callable[[str], Float8Form | None]:
    """As :func:`read_float8`, with a scale for each output."""
    config = parse(fields, _Float8)
    return _outside_of(config, Float8Form(1, None, activations=ActivationForm("fp8", most=_bound(config))))


def _bound(config: _Float8) -> float | None:
    most = config.activation_scale_ub
    if most is not None and not 0 < most < math.inf:
        raise ValueError(f"'quantization_config': 'activation_scale_ub' must be a number above 0, not {most}")
    return most


def _outside_of(config: _Float8, form: Float8Form) -> Callable[[str], Float8Form | None]:
    excluded = ("lm_head", *config.modules_to_not_convert, *config.ignored_layers)
    return lambda module: None if is_named(module, excluded) else form
