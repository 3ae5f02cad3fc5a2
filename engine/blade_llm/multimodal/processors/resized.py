"""The result of resizing, before it has a digest."""

from __future__ import annotations

from typing import Final, NamedTuple

CHANNELS: Final = 3
"""RGB."""
BICUBIC: Final = 3
"""``PIL.Image.Resampling.BICUBIC``, written as in processor files."""


class Resized(NamedTuple):
    """As in :class:`blade_llm.spec.vision.images.ImagePixels`."""

    grid: tuple[int, int, int]
    shape: tuple[int, int, int, int]
    pixels: bytes
