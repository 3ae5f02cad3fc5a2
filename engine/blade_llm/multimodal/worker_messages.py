"""What an API server and its worker processes say to each other; see :mod:`worker_process`."""

from __future__ import annotations

import os
from typing import Final

import msgspec

from blade_llm.multimodal.options import MIB, ImageOptions
from blade_llm.multimodal.processors import ImageProcessor
from blade_llm.multimodal.settings import PixelBounds

LENGTH_BYTES: Final = 4
"""Of a message, before it, little endian."""
_KEPT_MEMORY: Final = 64 * MIB


class Setup(msgspec.Struct, frozen=True, array_like=True):
    """What holds for all images."""

    processor: ImageProcessor
    max_source_pixels: int
    memory: int
    """Bytes of address space beyond what the process has after its start."""
    kept_memory: int
    """Bytes it may still have beyond that after an image; with more it ends, as decoders leak where they fail."""
    file_bytes: int
    """Size of the memory file."""
    seconds: float
    """CPU time for an image."""


class Job(msgspec.Struct, frozen=True, array_like=True):
    """An image, whose file is the first ``size`` bytes of the memory file."""

    size: int
    bounds: PixelBounds


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """An error, or what the first ``size`` bytes of the memory file are now."""

    error: str = ""
    size: int = 0
    digest: bytes = b""
    grid: tuple[int, int, int] = (0, 0, 0)
    shape: tuple[int, int, int, int] = (0, 0, 0, 0)


def write_all(descriptor: int, data: bytes) -> None:
    """To the beginning of the memory file."""
    view, at = memoryview(data), 0
    while at < len(view):
        at += os.pwrite(descriptor, view[at:], at)


def setup(processor: ImageProcessor, options: ImageOptions) -> Setup:
    """The limits of a worker.

    Its memory, in bytes a pixel of the source: 4 for the picture, 4 for it in RGB or turned, and what decoders need
    besides. Measured at 64 megapixels: 16 altogether for WebP, 10 for progressive JPEG, 8 with transparency.
    """
    resized = 8 * max(options.max_image_pixels or 0, processor.own_bounds.max_pixels) + 32 * MIB
    return Setup(
        processor,
        options.max_source_pixels,
        memory=18 * options.max_source_pixels + 3 * options.max_image_bytes + 2 * resized + 32 * MIB,
        kept_memory=_KEPT_MEMORY,
        file_bytes=max(options.max_image_bytes, resized),
        seconds=options.image_timeout,
    )
