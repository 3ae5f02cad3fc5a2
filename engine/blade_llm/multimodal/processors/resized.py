"""The result of resizing, before it has a digest."""

from __future__ import annotations

from typing import Final, NamedTuple

CHANNELS: Final = 3
"""RGB."""
BICUBIC: Final = 3
"""``PIL.Image.Resampling.BICUBIC``, written as in processor files."""
CLIP_MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD: Final = (0.26862954, 0.26130258, 0.27577711)
"""Per channel, of CLIP (Radford et al., 2021): the default of both kinds of processor."""


class Resized(NamedTuple):
    """As in :class:`blade_llm.spec.vision.images.ImagePixels`."""

    grid: tuple[int, int, int]
    shape: tuple[int, int, int, int]
    pixels: bytes
