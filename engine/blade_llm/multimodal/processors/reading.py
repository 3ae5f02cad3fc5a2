"""Read how a model wants its images from ``config.json`` and its processor files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from blade_llm.models.raw_config import is_number
from blade_llm.multimodal.errors import ProcessorFilesError
from blade_llm.multimodal.processors import ImageProcessor, QwenProcessor, TiledProcessor
from blade_llm.multimodal.processors.resized import BICUBIC
from blade_llm.spec.vision.images import CLIP_MEAN, CLIP_STD

_QWEN: Final = frozenset({"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"})
_TILED: Final = frozenset({"internvl"})
_MAX_BYTES: Final = 16 * 1024 * 1024


def read_processor(folder: Path) -> ImageProcessor | None:
    """The processor of the model in ``folder``; None when it takes no images (``config.json`` has no
    ``vision_config``). Raises :class:`ProcessorFilesError`.

    As in transformers, ``image_processor`` in ``processor_config.json`` comes before ``preprocessor_config.json``, and
    what neither says is the default of the processor's class.
    """
    config = _read(folder / "config.json")
    if not isinstance(config.get("vision_config"), dict):
        return None
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in _QWEN | _TILED:
        raise ProcessorFilesError(
            f"{folder / 'config.json'}: images of model_type {kind!r} are not supported, only those of "
            f"{', '.join(sorted(_QWEN | _TILED))}"
        )
    whole = _read(folder / "processor_config.json")
    nested = whole.get("image_processor")
    path = folder / ("processor_config.json" if isinstance(nested, dict) else "preprocessor_config.json")
    if not path.is_file():
        raise ProcessorFilesError(f"{path} is missing: a model that takes images has one")
    files = _Fields(path, nested if isinstance(nested, dict) else _read(path))
    if kind in _QWEN:
        return _qwen(files)
    return _tiled(files, _Fields(folder / "config.json", config), whole, _read(folder / "tokenizer_config.json"))


def _qwen(files: _Fields) -> QwenProcessor:
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


def _tiled(files: _Fields, config: _Fields, whole: dict[str, Any], tokenizer: dict[str, Any]) -> TiledProcessor:
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


class _Fields:
    """Fields of a processor file, checked."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self.path = path
        self.values = {name: value for name, value in values.items() if value is not None}

    def expect(self, kind: str) -> None:
        """The class (``Fast`` and ``Pil`` are the same one elsewhere), and every step of it."""
        found = self.values.get("image_processor_type", kind)
        # "Qwen2_5_VL…" and "Qwen3VL…" are names that files of the younger families have for the same class
        names = {kind, kind.replace("Qwen2VL", "Qwen2_5_VL"), kind.replace("Qwen2VL", "Qwen3VL")}
        if str(found).removesuffix("Fast").removesuffix("Pil") not in names:
            raise ProcessorFilesError(f"{self.path}: image_processor_type {found!r} is not supported, only {kind}")
        for step in ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb"):
            if self.values.get(step, True) is not True:
                raise ProcessorFilesError(f"{self.path}: {step} must be true")

    def size(self) -> dict[str, Any]:
        size = self.values.get("size", {})
        if not isinstance(size, dict):
            raise ProcessorFilesError(f"{self.path}: size must be an object")
        return {name: value for name, value in size.items() if value is not None}

    def whole(self, name: str, values: Mapping[str, Any]) -> int:
        value = values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31:
            raise ProcessorFilesError(f"{self.path}: {name} must be a positive whole number, not {value!r}")
        return value

    def above_zero(self, name: str, default: float) -> float:
        value = self.values.get(name, default)
        if not is_number(value) or value <= 0:
            raise ProcessorFilesError(f"{self.path}: {name} must be a positive number, not {value!r}")
        return float(value)

    def normalisation(self) -> dict[str, Any]:
        resample = self.values.get("resample", BICUBIC)
        if resample not in range(6):
            raise ProcessorFilesError(f"{self.path}: resample must be one of Pillow's filters, 0 to 5")
        rescale = self.above_zero("rescale_factor", 1 / 255)
        mean, std = self._channels("image_mean", CLIP_MEAN), self._channels("image_std", CLIP_STD)
        if min(std) <= 0:
            raise ProcessorFilesError(f"{self.path}: image_std must be positive")
        return {"resample": int(resample), "rescale": rescale, "mean": mean, "std": std}

    def _channels(self, name: str, default: tuple[float, float, float]) -> tuple[float, ...]:
        value = self.values.get(name, default)
        if is_number(value):
            value = [value] * 3
        if not isinstance(value, list | tuple) or len(value) != 3 or not all(map(is_number, value)):
            raise ProcessorFilesError(f"{self.path}: {name} must be three numbers, not {value!r}")
        return tuple(float(channel) for channel in value)


def _first(value: Any) -> Any:
    """Of a side written as [height, width]."""
    return value[0] if isinstance(value, list) and value and value[0] == value[-1] else value


def _token(names: Mapping[str, Any], name: str, default: str) -> str:
    value = names.get(name, default)
    return str(value.get("content", default)) if isinstance(value, dict) else str(value)


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; ``{}`` when there is no such file."""
    if not path.is_file():
        return {}
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ProcessorFilesError(f"{path} is larger than {_MAX_BYTES} bytes")
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, ProcessorFilesError):
            raise
        raise ProcessorFilesError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ProcessorFilesError(f"{path} must hold a JSON object")
    return value
