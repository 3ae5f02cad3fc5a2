"""Videos of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: which frames are taken, how large they become, and when they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from blade_llm.multimodal.processors.resized import BICUBIC
from blade_llm.multimodal.processors.smart_resize import smart_resize, video_resize
from blade_llm.multimodal.settings import PixelBounds

if TYPE_CHECKING:
    from PIL.Image import Image


class QwenVideo(msgspec.Struct, frozen=True):
    """As transformers' ``Qwen2VLVideoProcessor`` and, where :attr:`timestamps` are written, ``Qwen3VLVideoProcessor``,
    but that Pillow resizes: torchvision's bicubic filter, whose weights have 16 bits, differs by 1 of 255 in 1 % of the
    values at most, and by 2 in single ones.

    Values are normalised as those of images.
    """

    min_pixels: int = 128 * 28 * 28
    max_pixels: int = 768 * 28 * 28
    """Of a frame; where timestamps are written of all frames together."""
    patch_size: int = 14
    temporal_patch_size: int = 2
    """Frames in a patch; the last frame is repeated where some are missing."""
    merge_size: int = 2
    resample: int = BICUBIC
    fps: float = 2.0
    """Frames of a second that are taken of a file with more."""
    min_frames: int = 4
    max_frames: int = 768
    tokens_per_second: float | None = None
    """Temporal positions of a second (Qwen2.5-VL: Bai et al., arXiv 2502.13923). None: patches are 1 from each
    other."""
    timestamps: bool = False
    """The prompt says in text when each patch is, and shows it as an image of its own (Qwen3-VL: Bai et al., arXiv
    2511.21631)."""

    @property
    def own_bounds(self) -> PixelBounds:
        return PixelBounds(self.min_pixels, self.max_pixels)

    @property
    def max_frame_pixels(self) -> int:
        """Of one frame after resizing, at most."""
        return self.max_pixels // self.temporal_patch_size if self.timestamps else self.max_pixels

    def size(self, frames: int, height: int, width: int, bounds: PixelBounds) -> tuple[int, int]:
        """Height and width of each of ``frames`` frames after resizing. Raises :class:`ImageError`."""
        factor = self.patch_size * self.merge_size
        if not self.timestamps:
            return smart_resize(height, width, factor, bounds)
        temporal = self.temporal_patch_size
        # a single frame, which transformers refuses, is one that stays
        return video_resize(max(frames, temporal), height, width, temporal, factor, bounds)

    def resize(self, image: Image, size: tuple[int, int]) -> bytes:
        """An RGB frame as ``size`` (height, width): uint8 [height, width, 3]."""
        return image.resize((size[1], size[0]), resample=self.resample).tobytes()

    def sample(self, total: int, rate: float, fps: float | None, most: int) -> list[int]:
        """Indices of the frames to take of ``total``, ``rate`` of which are a second: ``fps`` a second (None: the
        model's own), within the model's bounds and ``most``."""
        most = min(self.max_frames, most, total)
        wanted = total / rate * (fps or self.fps)
        if self.timestamps:
            count = min(max(int(wanted), self.min_frames), most)
            step = (total - 1) / max(count - 1, 1)
            return [round(index * step) for index in range(count)]
        patch = self.temporal_patch_size
        count = int(min(max(wanted, self.min_frames), most // patch * patch) // patch) * patch
        count = max(count, 1)  # a file of a single frame
        return [index * total // count for index in range(count)]

    def seconds(self, indices: Sequence[int], rate: float) -> list[float]:
        """When each patch is that the frames ``indices`` make: between its first frame and its last."""
        patch = self.temporal_patch_size
        padded = [*indices, *[indices[-1]] * (-len(indices) % patch)]
        return [(padded[at] / rate + padded[at + patch - 1] / rate) / 2 for at in range(0, len(padded), patch)]

    def interval(self, rate: float) -> float:
        """Temporal positions between patches of which ``rate`` frames are a second."""
        return 1.0 if self.tokens_per_second is None else self.tokens_per_second * (self.temporal_patch_size / rate)
