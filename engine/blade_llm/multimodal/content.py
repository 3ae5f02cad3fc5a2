"""The digest that names an image's content in the encoder's cache and in the prefix cache."""

from __future__ import annotations

import hashlib
import struct


def content_digest(grid: tuple[int, int, int], shape: tuple[int, int, int, int], pixels: bytes) -> bytes:
    """sha256 of grid, shape and pixels. Equal files give equal digests, and so do different files that are decoded and
    resized to the same pixels."""
    digest = hashlib.sha256(struct.pack("<7I", *grid, *shape))
    digest.update(pixels)
    return digest.digest()
