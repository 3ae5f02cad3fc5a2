"""Reads rotary positions from a configuration: transformers 5 writes ``rope_parameters``; earlier ones ``rope_theta``
and ``rope_scaling``, with ``type`` for ``rope_type``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from blade_llm.models.errors import UnsupportedModelError
from blade_llm.models.raw_config import RawConfig
from blade_llm.spec.rope import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeScaling,
    RopeSpec,
    YarnScaling,
)

DEFAULT_THETA: Final = 10_000.0


def read_rope(
    raw: RawConfig,
    head_dim: int,
    *,
    partial: bool = False,
    pairing: Literal["halves", "neighbours"] = "halves",
    default_theta: float = DEFAULT_THETA,
    sections: tuple[int, int, int] | None = None,
    interleaved: bool = False,
) -> RopeSpec:
    """The rotation of all layers.

    ``partial``: the family knows ``partial_rotary_factor``; of others a factor that is not 1 is refused. ``sections``:
    of a family whose positions have three axes, those of a configuration that does not say; ``interleaved``: how its
    code divides pairs between axes, as :class:`RopeSpec` says.

    Raises ``KeyError`` and ``ValueError`` for what is missing or senseless, :class:`UnsupportedModelError`.
    """
    parameters = _parameters(raw)
    factor = float(parameters.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)))
    if not partial and factor != 1.0:
        raise UnsupportedModelError("'partial_rotary_factor' other than 1 is not supported for this architecture")
    if not 0 < factor <= 1:
        raise ValueError(f"'partial_rotary_factor' must be above 0 and at most 1, not {factor:g}")
    rotary_dim = int(head_dim * factor)
    if not 0 < rotary_dim <= head_dim or rotary_dim % 2:
        raise ValueError(f"'partial_rotary_factor' {factor:g} rotates {rotary_dim} of {head_dim} dimensions")
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if sections is not None:
        sections = _sections(parameters, sections, rotary_dim // 2)
        RawConfig(parameters).require("mrope_interleaved", interleaved)
        kind = "default" if kind == "mrope" else kind
    if kind not in SCALINGS:
        raise UnsupportedModelError(f"rope scaling {kind!r} is not supported; supported are {', '.join(SCALINGS)}")
    theta = RawConfig(parameters).above_zero("rope_theta", raw.above_zero("rope_theta", default_theta))
    scaling = SCALINGS[kind](RawConfig(parameters), raw, rotary_dim)
    if isinstance(scaling, YarnScaling) and theta <= 1:
        raise ValueError(f"'rope_theta' must be above 1 for yarn, not {theta:g}")
    return RopeSpec(theta, rotary_dim, scaling, pairing, sections, interleaved)


def _sections(parameters: Mapping[str, Any], default: tuple[int, int, int], pairs: int) -> tuple[int, int, int]:
    """``mrope_section``. Raises ``ValueError``."""
    match parameters.get("mrope_section", default):
        case [int(time), int(rows), int(columns)] if min(time, rows, columns) >= 0 and time + rows + columns == pairs:
            return time, rows, columns
        case found:
            raise ValueError(f"'mrope_section' must be three whole numbers that add up to {pairs}, not {found!r}")


def softmax_factor(raw: RawConfig) -> float:
    """What the scale of attention is multiplied by, beside the factor of cosines and sines: ``mscale_all_dim`` of
    DeepSeek's checkpoints, whose YaRN makes all dimensions' products larger, and not those alone that rotate."""
    parameters = RawConfig(_parameters(raw))
    weight = parameters.get("mscale_all_dim")
    if not weight or parameters.get("rope_type", parameters.get("type", "default")) == "default":
        return 1.0
    return _mscale(parameters.above_zero("factor"), parameters.above_zero("mscale_all_dim")) ** 2


def _mscale(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _parameters(raw: RawConfig) -> dict[str, Any]:
    parameters = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    if any(isinstance(value, dict) for value in parameters.values()):
        raise UnsupportedModelError("rope parameters that differ between layer types are not supported")
    return parameters


def _none(_own: RawConfig, _raw: RawConfig, _dim: int) -> None:
    """Also for ``dynamic``, which changes nothing up to the model's own length, and no engine serves more."""


def _linear(own: RawConfig, _raw: RawConfig, _dim: int) -> LinearScaling:
    return LinearScaling(own.above_zero("factor"))


def _llama3(own: RawConfig, _raw: RawConfig, _dim: int) -> Llama3Scaling:
    scaling = Llama3Scaling(
        own.above_zero("factor"),
        own.above_zero("low_freq_factor"),
        own.above_zero("high_freq_factor"),
        int(own.above_zero("original_max_position_embeddings")),
    )
    if scaling.low_freq_factor >= scaling.high_freq_factor:
        raise ValueError(
            f"'low_freq_factor' {scaling.low_freq_factor:g} must be below 'high_freq_factor' "
            f"{scaling.high_freq_factor:g}"
        )
    return scaling


def _yarn(own: RawConfig, raw: RawConfig, _dim: int) -> YarnScaling:
    original = _original_positions(own, raw)
    factor = own.above_zero("factor", raw.positive("max_position_embeddings") / original)
    own_weight, all_weight = own.get("mscale"), own.get("mscale_all_dim")
    attention = _mscale(factor, 1.0)
    if own_weight and all_weight:
        attention = _mscale(factor, own_weight) / _mscale(factor, all_weight)
    return YarnScaling(
        factor,
        original,
        float(own.get("beta_fast") or 32.0),
        float(own.get("beta_slow") or 1.0),
        own.above_zero("attention_factor", attention),
        own.flag("truncate", True),
    )


def _longrope(own: RawConfig, raw: RawConfig, dim: int) -> LongRopeScaling:
    original = _original_positions(own, raw)
    factor = own.above_zero("factor", raw.positive("max_position_embeddings") / original)
    if original < 2:
        raise ValueError("'original_max_position_embeddings' must be above 1 for longrope")
    attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    lists = []
    for name in ("short_factor", "long_factor"):
        values = own.fields[name]
        if not isinstance(values, list) or len(values) != dim // 2:
            raise ValueError(f"{name!r} must be a list of {dim // 2} numbers, one for each pair of dimensions")
        lists.append(tuple(RawConfig({name: value}).above_zero(name) for value in values))
    return LongRopeScaling(lists[0], lists[1], original, own.above_zero("attention_factor", attention))


def _original_positions(own: RawConfig, raw: RawConfig) -> int:
    name = "original_max_position_embeddings"
    return own.positive(name, raw.positive(name, raw.positive("max_position_embeddings")))


SCALINGS: Final[Mapping[str, Callable[[RawConfig, RawConfig, int], RopeScaling | None]]] = {
    "default": _none,
    "dynamic": _none,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,
}
"""The scaling rules that are computed, and what reads each one's numbers."""
