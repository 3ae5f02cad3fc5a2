"""Pixels as a vision tower sees them, in numpy: the reference for what processors and towers compute."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from blade_llm.multimodal.content import content_digest
from blade_llm.spec.vision.images import ImagePixels


class Normalisation(Protocol):
    """What a record must say to normalise pixels: ``(pixel * rescale - mean) / std``."""

    @property
    def rescale(self) -> float: ...
    @property
    def mean(self) -> tuple[float, float, float]: ...
    @property
    def std(self) -> tuple[float, float, float]: ...


class Patches(Normalisation, Protocol):
    """And to cut them into patches."""

    @property
    def patch_size(self) -> int: ...
    @property
    def temporal_patch_size(self) -> int: ...
    @property
    def merge_size(self) -> int: ...


def image_pixels(grid: tuple[int, int, int], shape: tuple[int, int, int, int], pixels: bytes) -> ImagePixels:
    """With its digest. ``pixels``: uint8, C order, of ``shape``. Raises :class:`ValueError` at another length."""
    frames, height, width, channels = shape
    if len(pixels) != frames * height * width * channels:
        raise ValueError(f"{len(pixels)} bytes of pixels are not of shape {shape}")
    return ImagePixels(content_digest(grid, shape, pixels), grid, shape, pixels)


def normalised_pixels(pixels: ImagePixels, spec: Normalisation) -> npt.NDArray[np.float32]:
    """[frames or tiles, 3, height, width]: InternVL's ``pixel_values`` in transformers, bit by bit (the product in
    float64, rounded, the rest in float32)."""
    values = np.frombuffer(pixels.pixels, np.uint8).reshape(pixels.shape)
    scaled = (values.astype(np.float64) * spec.rescale).astype(np.float32)
    normal = (scaled - np.array(spec.mean, np.float32)) / np.array(spec.std, np.float32)
    return np.ascontiguousarray(normal.transpose(0, 3, 1, 2))


def normalised_patches(pixels: ImagePixels, spec: Patches) -> npt.NDArray[np.float32]:
    """[patches, 3 * temporal_patch_size * patch_size**2]: Qwen's ``pixel_values`` in transformers, bit by bit.

    The patches that become one token are neighbours: they are ordered by frame, merged row, merged column, and row and
    column within. A single image is repeated to ``temporal_patch_size`` frames.
    """
    frames = normalised_pixels(pixels, spec)
    if len(frames) == 1:
        frames = np.repeat(frames, spec.temporal_patch_size, axis=0)
    times, rows, columns = pixels.grid
    merge, size = spec.merge_size, spec.patch_size
    split = frames.reshape(
        times, spec.temporal_patch_size, 3, rows // merge, merge, size, columns // merge, merge, size
    )
    ordered = split.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return ordered.reshape(times * rows * columns, -1)
