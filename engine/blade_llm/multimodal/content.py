"""The digest that names an image's content in the encoder's cache and in the prefix cache."""

from __future__ import annotations

import hashlib
import struct

from blade_llm.spec.vision.images import ImagePixels


def content_digest(grid: tuple[int, int, int], shape: tuple[int, int, int, int], pixels: bytes) -> bytes:
    """sha256 of grid, shape and pixels. Equal files give equal digests, and so do different files that are decoded and
    resized to the same pixels."""
    digest = hashlib.sha256(struct.pack("<7I", *grid, *shape))
    digest.update(pixels)
    return digest.digest()


def image_pixels(grid: tuple[int, int, int], shape: tuple[int, int, int, int], pixels: bytes) -> ImagePixels:
    """With its digest. ``pixels``: uint8, C order, of ``shape``. Raises :class:`ValueError` at another length."""
    frames, height, width, channels = shape
    if len(pixels) != frames * height * width * channels:
        raise ValueError(f"{len(pixels)} bytes of pixels are not of shape {shape}")
    return ImagePixels(content_digest(grid, shape, pixels), grid, shape, pixels)
