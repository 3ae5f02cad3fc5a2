"""The digest that names an image's content in the encoder's cache and in the prefix cache."""

from __future__ import annotations

import hashlib
import struct


def content_digest(
    grid: tuple[int, int, int], shape: tuple[int, int, int, int], pixels: bytes, interval: float = 1.0
) -> bytes:
    """sha256 of grid, shape and pixels, and of ``interval``
    (:attr:`~blade_llm.spec.vision.images.ImageSpan.interval`) where it is another than that of images. Equal files give
    equal digests, and so do different files that are decoded and resized to the same pixels."""
    digest = hashlib.sha256(struct.pack("<7I", *grid, *shape))
    if interval != 1.0:
        digest.update(struct.pack("<d", interval))
    digest.update(pixels)
    return digest.digest()
