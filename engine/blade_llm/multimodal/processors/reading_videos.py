"""Read how a model wants its videos from ``config.json`` and its processor files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from blade_llm.multimodal.errors import ProcessorFilesError
from blade_llm.multimodal.processors import ImageProcessor, QwenProcessor
from blade_llm.multimodal.processors.fields import Fields, read_object
from blade_llm.multimodal.processors.video import QwenVideo

_TIMESTAMPS: Final = frozenset({"qwen3_vl", "qwen3_vl_moe"})
_HALVES: Final = (0.5, 0.5, 0.5)
_FILES: Final = ("video_preprocessor_config.json", "preprocessor_config.json")


def read_video(folder: Path, images: ImageProcessor) -> QwenVideo | None:
    """How the model in ``folder``, whose images are read by ``images``, takes videos; None for one that takes none.
    Raises :class:`ProcessorFilesError`.

    As in transformers, ``video_processor`` in ``processor_config.json`` comes first, then
    ``video_preprocessor_config.json``, then ``preprocessor_config.json``, whose bounds are those of images.
    """
    if not isinstance(images, QwenProcessor):
        return None
    config = read_object(folder / "config.json")
    kind = config.get("model_type")
    files, timestamps = _fields(folder), kind in _TIMESTAMPS
    for name in ("num_frames", "cap_pixels_per_frame", "do_center_crop"):
        if files.values.get(name):
            raise ProcessorFilesError(f"{files.path}: {name} is not supported")
    files.expect_steps()
    patch, least, most = (16, 128 * 32 * 32, 768 * 32 * 32) if timestamps else (14, 128 * 28 * 28, 768 * 28 * 28)
    defaults: dict[str, Any] = {"patch_size": patch, "temporal_patch_size": 2, "merge_size": 2}
    values = defaults | {"min_frames": 4, "max_frames": 768} | files.values
    size = files.size() or {"shortest_edge": least, "longest_edge": most}
    if not timestamps:  # older names, which only this class reads
        size |= {
            edge: values[name]
            for name, edge in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge"))
            if name in values
        }
    normalisation = files.normalisation(_HALVES, _HALVES) if timestamps else files.normalisation()
    for name in ("rescale", "mean", "std"):
        if normalisation[name] != getattr(images, name):
            raise ProcessorFilesError(f"{files.path}: videos are not normalised as images are ({name})")
    for name in defaults:
        if values[name] != getattr(images, name):
            raise ProcessorFilesError(f"{files.path}: {name} is {values[name]!r}, of images {getattr(images, name)}")
    vision = Fields(folder / "config.json", config.get("vision_config") or {})
    return QwenVideo(
        min_pixels=files.whole("shortest_edge", size),
        max_pixels=files.whole("longest_edge", size),
        resample=normalisation["resample"],
        fps=files.above_zero("fps", 2.0),
        min_frames=files.whole("min_frames", values),
        max_frames=files.whole("max_frames", values),
        tokens_per_second=vision.above_zero("tokens_per_second", 4.0) if kind == "qwen2_5_vl" else None,
        timestamps=timestamps,
        **{name: files.whole(name, values) for name in defaults},
    )


def _fields(folder: Path) -> Fields:
    nested = read_object(folder / "processor_config.json").get("video_processor")
    if isinstance(nested, dict):
        return Fields(folder / "processor_config.json", nested)
    for name in _FILES:
        if (folder / name).is_file():
            return Fields(folder / name, read_object(folder / name))
    raise ProcessorFilesError(f"{folder / _FILES[0]} is missing: a model that takes videos has one")
