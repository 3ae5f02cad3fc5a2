"""Reads the vision tower of a ``config.json``: of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and InternVL. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from blade_llm.models.errors import UnsupportedModelError
from blade_llm.models.raw_config import MAX_LAYERS, RawConfig, is_number
from blade_llm.spec.mlp import MLPSpec
from blade_llm.spec.norm import NormSpec
from blade_llm.spec.vision.images import CLIP_MEAN, CLIP_STD
from blade_llm.spec.vision.tower import MergerSpec, PositionTable, TowerFamily, VisionSpec

_MAX_SIDE: Final = 4096
"""Of tables of positions and of patches: far more than any model has."""


def read_vision(raw: RawConfig, preprocessor: Mapping[str, Any]) -> VisionSpec | None:
    """The tower that ``config.json`` describes below ``vision_config``; None without.

    ``preprocessor``: fields of ``preprocessor_config.json``, or of ``image_processor`` in ``processor_config.json``;
    empty where the folder has neither. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for what is missing or
    senseless, :class:`~blade_llm.models.errors.UnsupportedModelError` for what is not computed.
    """
    fields = raw.get("vision_config")
    if fields is None:
        return None
    if not isinstance(fields, Mapping):
        raise TypeError(f"'vision_config' must be an object, not {fields!r}")
    family = str(raw.get("model_type", ""))
    if family not in _READERS:
        raise UnsupportedModelError(
            f"the vision tower of model_type {family!r} is not supported; supported are those of {', '.join(_READERS)}"
        )
    return _READERS[family](raw, RawConfig(fields), RawConfig(preprocessor.get("image_processor", preprocessor)))


def _qwen2_vl(raw: RawConfig, vision: RawConfig, preprocessor: RawConfig) -> VisionSpec:
    width, ratio = vision.positive("embed_dim", 1280), vision.above_zero("mlp_ratio", 4)
    norm = NormSpec(1e-6, "layer", bias=True)
    return VisionSpec(
        **_common(raw, vision, preprocessor, "qwen2_vl", vision.positive("hidden_size", 3584), width),
        mlp=MLPSpec(int(width * ratio), vision.activation(default="quick_gelu"), gated=False, bias=True),
        norm=norm,
        merger=_merger(vision, width, norm),
    )


def _qwen2_5_vl(raw: RawConfig, vision: RawConfig, preprocessor: RawConfig) -> VisionSpec:
    width = vision.positive("hidden_size", 3584)
    common = _common(raw, vision, preprocessor, "qwen2_5_vl", vision.positive("out_hidden_size", 3584), width)
    merge = int(common["merge_size"])
    window = vision.positive("window_size", 112) // merge // int(common["patch_size"]) * merge
    if not window:
        raise ValueError("'window_size' is smaller than the square of patches that makes an embedding")
    full = _layers(vision, "fullatt_block_indexes", (7, 15, 23, 31))
    norm = NormSpec(1e-6)
    return VisionSpec(
        **common,
        mlp=MLPSpec(vision.positive("intermediate_size", 3420), vision.activation(), gated=True, bias=True),
        norm=norm,
        merger=_merger(vision, width, norm),
        window=window,
        full_layers=tuple(layer for layer in full if layer < common["num_layers"]),
    )


def _qwen3_vl(raw: RawConfig, vision: RawConfig, preprocessor: RawConfig) -> VisionSpec:
    width = vision.positive("hidden_size", 1152)
    activation = vision.activation(default="gelu_pytorch_tanh")
    norm = NormSpec(1e-6, "layer", bias=True)
    levels = _layers(vision, "deepstack_visual_indexes", (8, 16, 24))
    positions = vision.positive("num_position_embeddings", 2304)
    side = math.isqrt(positions)
    if side**2 != positions or side > _MAX_SIDE:
        raise ValueError(f"'num_position_embeddings' {positions} is no square of at most {_MAX_SIDE}")
    return VisionSpec(
        **_common(raw, vision, preprocessor, "qwen3_vl", vision.positive("out_hidden_size", 3584), width),
        mlp=MLPSpec(vision.positive("intermediate_size", 4304), activation, gated=False, bias=True),
        norm=norm,
        merger=_merger(vision, width, norm),
        patch_bias=True,
        positions=PositionTable(side),
        deepstack=levels,
        deepstack_merger=_merger(vision, width, norm, norm_merged=True) if levels else None,
    )


def _internvl(raw: RawConfig, vision: RawConfig, preprocessor: RawConfig) -> VisionSpec:
    vision.require("use_qk_norm", False)
    vision.require("use_absolute_position_embeddings", True)
    vision.require("use_mean_pooling", True)
    vision.require("norm_type", "layer_norm", "rms_norm")
    vision.require("num_channels", 3)
    raw.require("vision_feature_layer", -1)
    raw.require("vision_feature_select_strategy", "default")
    merge = round(1 / raw.above_zero("downsample_ratio", 0.5))
    if merge * raw.above_zero("downsample_ratio", 0.5) != 1.0:
        raise UnsupportedModelError("'downsample_ratio' is supported where it is 1 divided by a whole number")
    patch = _side(vision, "patch_size", 14)
    side, rest = divmod(_side(vision, "image_size", 448), patch)
    if rest or side % merge:
        raise ValueError(f"'image_size' does not divide into squares of {merge} x {merge} patches of {patch} pixels")
    width, inner = vision.positive("hidden_size", 1024), _text_size(raw)
    eps, layer_norm = vision.above_zero("layer_norm_eps", 1e-6), vision.get("norm_type", "layer_norm") == "layer_norm"
    return VisionSpec(
        family="internvl",
        image_token=raw.count("image_token_id", 151667),
        video_token=None,
        hidden_size=inner,
        width=width,
        num_layers=_depth(vision, "num_hidden_layers", 24),
        num_heads=vision.positive("num_attention_heads", 16),
        mlp=MLPSpec(vision.positive("intermediate_size", 4096), vision.activation(default="gelu"), False, True),
        norm=NormSpec(eps, "layer", bias=True) if layer_norm else NormSpec(eps),
        merger=MergerSpec(
            inner,
            NormSpec(1e-5, "layer", bias=True),
            raw.activation("projector_hidden_act", "gelu"),
            norm_merged=True,
        ),
        patch_size=patch,
        temporal_patch_size=1,
        merge_size=merge,
        **_pixels(preprocessor),
        qkv_bias=vision.flag("attention_bias"),
        patch_bias=True,
        positions=PositionTable(side, interpolated=False),
        class_token=True,
        layer_scale=True,
    )


_READERS: Final[Mapping[str, Callable[[RawConfig, RawConfig, RawConfig], VisionSpec]]] = {
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen3_vl,
    "qwen3_vl_moe": _qwen3_vl,
    "internvl": _internvl,
}
"""By ``model_type``."""


def _common(
    raw: RawConfig, vision: RawConfig, preprocessor: RawConfig, family: TowerFamily, hidden_size: int, width: int
) -> dict[str, Any]:
    """What all of Qwen's towers have."""
    for name in ("in_channels", "in_chans"):
        vision.require(name, 3)
    if hidden_size != _text_size(raw):
        raise ValueError(f"the vision tower makes embeddings of {hidden_size}, the text model takes {_text_size(raw)}")
    rope = RawConfig(vision.get("rope_parameters", {}))
    rope.require("rope_type", "axial", "default")
    sizes = {
        "patch_size": _side(vision, "patch_size", 16 if family == "qwen3_vl" else 14),
        "temporal_patch_size": _side(vision, "temporal_patch_size", 2),
        "merge_size": vision.positive("spatial_merge_size", 2),
    }
    for name, size in sizes.items():
        if preprocessor.get(name, size) != size:
            raise ValueError(f"{name!r} is {preprocessor.get(name)} in the preprocessor, {size} in the vision tower")
    return {
        "family": family,
        "image_token": raw.count("image_token_id", 151655),
        "video_token": raw.count("video_token_id", 151656),
        "hidden_size": hidden_size,
        "width": width,
        "num_layers": _depth(vision, "depth", 27 if family == "qwen3_vl" else 32),
        "num_heads": vision.positive("num_heads", 16),
        "rope_theta": rope.above_zero("rope_theta", 10_000),
        **sizes,
        **_pixels(preprocessor),
    }


def _merger(vision: RawConfig, width: int, norm: NormSpec, *, norm_merged: bool = False) -> MergerSpec:
    """Of Qwen's towers."""
    return MergerSpec(width * vision.positive("spatial_merge_size", 2) ** 2, norm, norm_merged=norm_merged)


def _text_size(raw: RawConfig) -> int:
    """Hidden size of the text model, whose fields older files have beside ``vision_config``."""
    return RawConfig(raw.get("text_config", raw.fields)).positive("hidden_size")


def _pixels(preprocessor: RawConfig) -> dict[str, Any]:
    rescale = preprocessor.above_zero("rescale_factor", 1 / 255) if preprocessor.flag("do_rescale", True) else 1.0
    mean, std = _colours(preprocessor, "image_mean", CLIP_MEAN), _colours(preprocessor, "image_std", CLIP_STD)
    if not preprocessor.flag("do_normalize", True):
        mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    if min(std) <= 0:
        raise ValueError(f"'image_std' {list(std)} must be above 0")
    return {"mean": mean, "std": std, "rescale": rescale}


def _colours(preprocessor: RawConfig, name: str, default: tuple[float, float, float]) -> tuple[float, float, float]:
    values = preprocessor.get(name, default)
    if type(values) in (int, float):  # of all colours
        values = [values] * 3
    if not isinstance(values, list | tuple) or len(values) != 3:
        raise ValueError(f"{name!r} must be three numbers, not {values!r}")
    if not all(map(is_number, values)):
        raise ValueError(f"{name!r} must be three finite numbers, not {values!r}")
    red, green, blue = (float(value) for value in values)
    return red, green, blue


def _side(raw: RawConfig, name: str, default: int) -> int:
    """A size that may be written once, or for both sides."""
    value = raw.get(name, default)
    if isinstance(value, list | tuple):
        if len(set(value)) != 1:
            raise UnsupportedModelError(f"{name!r} {value!r} is not supported; equal numbers are")
        value = value[0]
    if type(value) is not int or not 0 < value <= _MAX_SIDE:
        raise ValueError(f"{name!r} must be a positive integer of at most {_MAX_SIDE}, not {value!r}")
    return value


def _depth(vision: RawConfig, name: str, default: int) -> int:
    depth = vision.positive(name, default)
    if depth > MAX_LAYERS:
        raise ValueError(f"{name!r} must be at most {MAX_LAYERS}, not {depth}")
    return depth


def _layers(vision: RawConfig, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """Indices of layers."""
    values = vision.get(name, default)
    if not isinstance(values, list | tuple) or not all(type(value) is int and value >= 0 for value in values):
        raise ValueError(f"{name!r} must be indices of layers, not {values!r}")
    return tuple(values)
