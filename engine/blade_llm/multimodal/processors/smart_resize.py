"""The sizes that the Qwen-VL models resize an image and the frames of a video to."""

from __future__ import annotations

import math
from typing import Final

from blade_llm.multimodal.errors import ImageError
from blade_llm.multimodal.settings import PixelBounds

MAX_RATIO: Final = 200
"""Longer to shorter side; Qwen2-VL's processor refuses more."""


def check_ratio(height: int, width: int) -> None:
    """Raises :class:`ImageError`."""
    if max(height, width) / min(height, width) > MAX_RATIO:
        raise ImageError(
            f"the image is {width} x {height} pixels: one side is more than {MAX_RATIO} times the other; crop or pad it"
        )


def smart_resize(height: int, width: int, factor: int, bounds: PixelBounds) -> tuple[int, int]:
    """Height and width that are multiples of ``factor`` pixels, within ``bounds``, at almost the same ratio (Qwen2-VL,
    Wang et al., 2024: "naive dynamic resolution"). The arithmetic in floating point is transformers', operation by
    operation, because its rounding decides the number of tokens.

    Extreme ratios can end outside the bounds, by one row or column of ``factor``. Raises :class:`ImageError`.
    """
    check_ratio(height, width)
    area = round(height / factor) * factor * (round(width / factor) * factor)
    if area > bounds.max_pixels:
        shrink = math.sqrt((height * width) / bounds.max_pixels)
        rows, columns = (max(1, math.floor(side / shrink / factor)) for side in (height, width))
    elif area < bounds.min_pixels:
        enlarge = math.sqrt(bounds.min_pixels / (height * width))
        rows, columns = (math.ceil(side * enlarge / factor) for side in (height, width))
    else:
        rows, columns = round(height / factor), round(width / factor)
    return rows * factor, columns * factor


def video_resize(
    frames: int, height: int, width: int, temporal: int, factor: int, bounds: PixelBounds
) -> tuple[int, int]:
    """As :func:`smart_resize`, for a video whose ``bounds`` are those of all its frames together (Qwen3-VL, Bai et al.,
    arXiv 2511.21631). ``temporal``: frames of a patch, at least so many ``frames`` are there. Short sides are enlarged
    to ``factor`` first. Raises :class:`ImageError`."""
    if height < factor or width < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    check_ratio(height, width)
    rows, columns = round(height / factor), round(width / factor)
    volume = round(frames / temporal) * temporal * rows * factor * (columns * factor)
    if volume > bounds.max_pixels:
        shrink = math.sqrt((frames * height * width) / bounds.max_pixels)
        rows, columns = (max(1, math.floor(side / shrink / factor)) for side in (height, width))
    elif volume < bounds.min_pixels:
        enlarge = math.sqrt(bounds.min_pixels / (frames * height * width))
        rows, columns = (math.ceil(side * enlarge / factor) for side in (height, width))
    return rows * factor, columns * factor
