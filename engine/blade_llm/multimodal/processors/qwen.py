"""Images of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: one size of its own for every image."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from blade_llm.multimodal.processors.resized import BICUBIC, CHANNELS, Resized
from blade_llm.multimodal.processors.sizes import check_area
from blade_llm.multimodal.processors.smart_resize import check_ratio, smart_resize
from blade_llm.multimodal.settings import PixelBounds
from blade_llm.spec.vision.images import CLIP_MEAN, CLIP_STD

if TYPE_CHECKING:
    from PIL.Image import Image


class QwenProcessor(msgspec.Struct, frozen=True, tag="qwen"):
    """Equal to transformers' ``Qwen2VLImageProcessorPil``, whose defaults these are; all three families use it."""

    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280
    patch_size: int = 14
    """Side, in pixels."""
    temporal_patch_size: int = 2
    """Frames in a patch; an image is repeated to as many."""
    merge_size: int = 2
    """Side, in patches, of what becomes one token."""
    resample: int = BICUBIC
    rescale: float = 1 / 255
    mean: tuple[float, float, float] = CLIP_MEAN
    std: tuple[float, float, float] = CLIP_STD

    @property
    def own_bounds(self) -> PixelBounds:
        return PixelBounds(self.min_pixels, self.max_pixels)

    @property
    def surrounding(self) -> tuple[str, str]:
        """Special tokens to put before and after an image's tokens; here the chat template writes them."""
        return "", ""

    def check_size(self, height: int, width: int) -> None:
        """Of an image not decoded yet. Raises :class:`ImageError`."""
        check_area(height, width)
        check_ratio(height, width)

    def grid(self, height: int, width: int, bounds: PixelBounds) -> tuple[int, int, int]:
        """Frames (1), rows and columns, in patches. Raises :class:`ImageError`."""
        rows, columns = smart_resize(height, width, self.patch_size * self.merge_size, bounds)
        return 1, rows // self.patch_size, columns // self.patch_size

    def count(self, grid: tuple[int, int, int]) -> int:
        """Tokens of an image."""
        frames, rows, columns = grid
        return frames * rows * columns // self.merge_size**2

    def process(self, image: Image, bounds: PixelBounds) -> Resized:
        """Resize an RGB image; ``shape`` is (1, height, width, 3). Raises :class:`ImageError`."""
        grid = self.grid(image.height, image.width, bounds)
        height, width = grid[1] * self.patch_size, grid[2] * self.patch_size
        pixels = image.resize((width, height), resample=self.resample).tobytes()
        return Resized(grid, (1, height, width, CHANNELS), pixels)
