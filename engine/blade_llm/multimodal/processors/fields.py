"""Fields of a model's processor files, checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from blade_llm.models.raw_config import is_number
from blade_llm.multimodal.errors import ProcessorFilesError
from blade_llm.multimodal.processors.resized import BICUBIC
from blade_llm.spec.vision.images import CLIP_MEAN, CLIP_STD

_MAX_BYTES: Final = 16 * 1024 * 1024


class Fields:
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
        self.expect_steps()

    def expect_steps(self) -> None:
        """Every step of a processor, which files may leave out."""
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

    def normalisation(
        self, mean: tuple[float, float, float] = CLIP_MEAN, std: tuple[float, float, float] = CLIP_STD
    ) -> dict[str, Any]:
        """``resample``, ``rescale``, ``mean`` and ``std``. ``mean``, ``std``: where the file does not say them."""
        resample = self.values.get("resample", BICUBIC)
        if resample not in range(6):
            raise ProcessorFilesError(f"{self.path}: resample must be one of Pillow's filters, 0 to 5")
        rescale = self.above_zero("rescale_factor", 1 / 255)
        means, stds = self._channels("image_mean", mean), self._channels("image_std", std)
        if min(stds) <= 0:
            raise ProcessorFilesError(f"{self.path}: image_std must be positive")
        return {"resample": int(resample), "rescale": rescale, "mean": means, "std": stds}

    def _channels(self, name: str, default: tuple[float, float, float]) -> tuple[float, ...]:
        value = self.values.get(name, default)
        if is_number(value):
            value = [value] * 3
        if not isinstance(value, list | tuple) or len(value) != 3 or not all(map(is_number, value)):
            raise ProcessorFilesError(f"{self.path}: {name} must be three numbers, not {value!r}")
        return tuple(float(channel) for channel in value)


def read_object(path: Path) -> dict[str, Any]:
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
