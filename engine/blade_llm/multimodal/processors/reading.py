"""Read how a model wants its images from ``config.json`` and its processor files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from blade_llm.multimodal.errors import ProcessorFilesError
from blade_llm.multimodal.processors import ImageProcessor, QwenProcessor, TiledProcessor
from blade_llm.multimodal.processors.fields import Fields, read_object

_QWEN: Final = frozenset({"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"})
_TILED: Final = frozenset({"internvl"})


def read_processor(folder: Path) -> ImageProcessor | None:
    """The processor of the model in ``folder``; None when it takes no images (``config.json`` has no
    ``vision_config``). Raises :class:`ProcessorFilesError`.

    As in transformers, ``image_processor`` in ``processor_config.json`` comes before ``preprocessor_config.json``, and
    what neither says is the default of the processor's class.
    """
    config = read_object(folder / "config.json")
    if not isinstance(config.get("vision_config"), dict):
        return None
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in _QWEN | _TILED:
        raise ProcessorFilesError(
            f"{folder / 'config.json'}: images of model_type {kind!r} are not supported, only those of "
            f"{', '.join(sorted(_QWEN | _TILED))}"
        )
    whole = read_object(folder / "processor_config.json")
    nested = whole.get("image_processor")
    path = folder / ("processor_config.json" if isinstance(nested, dict) else "preprocessor_config.json")
    if not path.is_file():
        raise ProcessorFilesError(f"{path} is missing: a model that takes images has one")
    files = Fields(path, nested if isinstance(nested, dict) else read_object(path))
    if kind in _QWEN:
        return _qwen(files)
    return _tiled(files, Fields(folder / "config.json", config), whole, read_object(folder / "tokenizer_config.json"))


def _qwen(files: Fields) -> QwenProcessor:
    files.expect("Qwen2VLImageProcessor")
    default = msgspec.structs.asdict(QwenProcessor())
    size = files.size()
    # as transformers: min_pixels and max_pixels are older names, and come first
    edges = {"min_pixels": size.get("shortest_edge"), "max_pixels": size.get("longest_edge")}
    older = {name: size[name] for name in edges if name in size}
    values = default | {name: edge for name, edge in edges.items() if edge is not None} | older | files.values
    return QwenProcessor(
        min_pixels=files.whole("min_pixels", values),
        max_pixels=files.whole("max_pixels", values),
        patch_size=files.whole("patch_size", values),
        temporal_patch_size=files.whole("temporal_patch_size", values),
        merge_size=files.whole("merge_size", values),
        **files.normalisation(),
    )


def _tiled(files: Fields, config: Fields, whole: dict[str, Any], tokenizer: dict[str, Any]) -> TiledProcessor:
    files.expect("GotOcr2ImageProcessor")
    vision: dict[str, Any] = config.values["vision_config"]
    patch_size = config.whole("patch_size", {"patch_size": _first(vision.get("patch_size", 14))})
    size = {"height": 384, "width": 384} | files.size()
    height, width = files.whole("height", size), files.whole("width", size)
    if height % patch_size or width % patch_size:
        raise ProcessorFilesError(f"{files.path}: size {width} x {height} is no multiple of patch_size {patch_size}")
    tokens = whole.get("image_seq_length", config.values.get("image_seq_length", 256))
    ratio = config.above_zero("downsample_ratio", 0.5)
    if ratio > 1:
        raise ProcessorFilesError(f"{config.path}: downsample_ratio {ratio} is more than 1")
    if type(tokens) is not int or tokens != int((height // patch_size * ratio) * (width // patch_size * ratio)):
        raise ProcessorFilesError(
            f"{files.path}: tiles of {width} x {height} do not make image_seq_length {tokens} tokens at patch_size "
            f"{patch_size} and downsample_ratio {ratio}"
        )
    tiles = {"min_patches": 1, "max_patches": 12} | files.values
    extra = tokenizer.get("extra_special_tokens")
    names = tokenizer | extra if isinstance(extra, dict) else tokenizer
    return TiledProcessor(
        height,
        width,
        patch_size,
        tokens,
        files.whole("min_patches", tiles),
        files.whole("max_patches", tiles),
        surrounding=(_token(names, "start_image_token", "<img>"), _token(names, "end_image_token", "</img>")),
        **files.normalisation(),
    )


def _first(value: Any) -> Any:
    """Of a side written as [height, width]."""
    return value[0] if isinstance(value, list) and value and value[0] == value[-1] else value


def _token(names: Mapping[str, Any], name: str, default: str) -> str:
    value = names.get(name, default)
    return str(value.get("content", default)) if isinstance(value, dict) else str(value)
