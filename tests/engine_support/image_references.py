"""What transformers' processors for PIL images make of the files of :mod:`image_cases`.

``python -m engine_support.image_references``, in ``tests/``, writes the file that tests compare with.
"""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from engine_support.image_cases import PROCESSORS, cases
from PIL import Image, ImageOps
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from blade_llm.multimodal.processors import ImageProcessor, QwenProcessor

STORED: Final = Path(__file__).parent.parent / "engine" / "multimodal" / "transformers_pixel_values.json"
SAMPLES: Final = 6


class Expected(msgspec.Struct, frozen=True, array_like=True):
    """Of a case: the file, and the ``pixel_values`` (float32) that transformers makes of it."""

    file_sha256: str
    """First 16 digits. Another one means that Pillow writes other files now: make the expected values again."""
    grid: tuple[int, ...]
    shape: tuple[int, ...]
    sha256: str
    """Of the values, little endian."""
    samples: tuple[float, ...]
    """Some of the values, evenly apart."""


def reference(processor: ImageProcessor) -> Any:
    """The same processor, of transformers."""
    if isinstance(processor, QwenProcessor):
        return Qwen2VLImageProcessorPil(
            size={"shortest_edge": processor.min_pixels, "longest_edge": processor.max_pixels},
            patch_size=processor.patch_size,
            temporal_patch_size=processor.temporal_patch_size,
            merge_size=processor.merge_size,
            image_mean=list(processor.mean),
            image_std=list(processor.std),
        )
    return GotOcr2ImageProcessorPil(
        size={"height": processor.tile_height, "width": processor.tile_width},
        crop_to_patches=True,
        min_patches=processor.min_tiles,
        max_patches=processor.max_tiles,
        image_mean=list(processor.mean),
        image_std=list(processor.std),
    )


def reference_values(processor: ImageProcessor, data: bytes) -> tuple[tuple[int, ...], npt.NDArray[np.float32]]:
    """Grid and ``pixel_values`` of one file, turned upright as ``load_image`` does."""
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    result = reference(processor)(images=[image], return_tensors="np")
    values = result["pixel_values"]
    if isinstance(processor, QwenProcessor):
        return tuple(result["image_grid_thw"][0].tolist()), values
    patches = values.shape[2] // processor.patch_size, values.shape[3] // processor.patch_size
    return (int(result["num_patches"][0]), *patches), values


def sha256(values: npt.NDArray[np.float32]) -> str:
    return hashlib.sha256(values.astype("<f4").tobytes()).hexdigest()


def samples(values: npt.NDArray[np.float32]) -> tuple[float, ...]:
    flat = values.reshape(-1)
    return tuple(round(float(flat[at]), 5) for at in np.linspace(0, flat.size - 1, SAMPLES).astype(int))


def file_sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def main() -> None:
    lines = []
    for case in cases():
        grid, values = reference_values(PROCESSORS[case.processor], case.data)
        expected = Expected(file_sha256(case.data), grid, values.shape, sha256(values), samples(values))
        lines.append(f"{json.dumps(case.name)}: {msgspec.json.encode(expected).decode()}")
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{len(lines)} cases, {STORED.stat().st_size} bytes")


if __name__ == "__main__":
    main()
