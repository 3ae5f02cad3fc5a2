"""Images in a prompt, as API servers, scheduler and runner name them to each other."""

from __future__ import annotations

from typing import Final

import msgspec

CLIP_MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD: Final = (0.26862954, 0.26130258, 0.27577711)
"""Per channel, of CLIP (Radford et al., 2021): what normalises images where a model's files say nothing."""


class ImageSpan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Positions ``start .. start + count - 1`` of a prompt hold image tokens, which are fed with the embeddings that
    the vision tower makes of an image, or of the frames of a video."""

    start: int
    count: int
    digest: bytes
    """Content digest (32 bytes) of pixels and grid: equal ones have equal embeddings. It names them everywhere, and it
    is in the digests of KV blocks."""
    grid: tuple[int, int, int]
    """Frames (after temporal merging), rows and columns, in patches, before spatial merging. Of towers that cut an
    image into tiles: tiles, rows and columns of one tile."""
    interval: float = 1.0
    """Temporal positions from a frame to the next (Qwen2.5-VL: seconds times ``tokens_per_second``). What the digest of
    a video names as well, since the values of attention depend on it."""

    @property
    def stretched(self) -> bool:
        """Whether its last frame is at a position beyond that of its last token, for which no position is planned."""
        return (self.grid[0] - 1) * self.interval > self.count - 1

    @property
    def end(self) -> int:
        """The position behind the last one."""
        return self.start + self.count


class ImagePixels(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a vision tower makes embeddings of: decoded and resized, not yet normalised."""

    digest: bytes
    grid: tuple[int, int, int]
    """As :attr:`ImageSpan.grid`."""
    shape: tuple[int, int, int, int]
    """Frames (of a single image 1) or tiles, height, width, channels (3: RGB)."""
    pixels: bytes
    """uint8, C order. In the engine process a memoryview of the message that brought them."""
