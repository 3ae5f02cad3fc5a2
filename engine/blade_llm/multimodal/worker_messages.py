"""What an API server and its worker processes say to each other; see :mod:`worker_process`."""

from __future__ import annotations

import os
from typing import Final

import msgspec

from blade_llm.multimodal.options import MIB, ImageOptions
from blade_llm.multimodal.processors import ImageProcessor
from blade_llm.multimodal.processors.video import QwenVideo
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
    video: QwenVideo | None = None
    """None: there are no videos."""
    video_seconds: float = 0.0
    """CPU time for an animation."""

    def seconds_for(self, job: Job) -> float:
        """CPU time for ``job``."""
        return self.video_seconds if isinstance(job.video, Animation) else self.seconds


class OneFrame(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The file is one frame of a video of so many."""

    frames: int


class Animation(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The file is a whole video."""

    fps: float | None
    """Frames to take of a second; None: as many as the model wants."""
    most: int
    """Frames to take at most."""
    max_pixels: int
    """Of all frames that are taken, after resizing."""


class Job(msgspec.Struct, frozen=True, array_like=True):
    """An image, whose file is the first ``size`` bytes of the memory file."""

    size: int
    bounds: PixelBounds
    video: OneFrame | Animation | None = None
    """None: the file is an image."""


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """An error, or what the first ``size`` bytes of the memory file are now."""

    error: str = ""
    size: int = 0
    digest: bytes = b""
    grid: tuple[int, int, int] = (0, 0, 0)
    shape: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Of a video all frames that are there; ``digest`` and ``grid`` are left out then."""
    indices: tuple[int, ...] = ()
    """Of the frames that were taken of an animation."""
    total: int = 0
    """Frames that it has."""
    rate: float = 0.0
    """So many of them are a second."""
    seconds: float = 0.0
    """CPU time that a frame took."""


def write_all(descriptor: int, data: bytes, start: int = 0) -> None:
    """To the memory file from ``start`` on."""
    view, at = memoryview(data), 0
    while at < len(view):
        at += os.pwrite(descriptor, view[at:], start + at)


def setup(processor: ImageProcessor, options: ImageOptions, video: QwenVideo | None = None) -> Setup:
    """The limits of a worker.

    Its memory, in bytes a pixel of the source: 4 for the picture, 4 for it in RGB or turned, and what decoders need
    besides. Measured at 64 megapixels: 16 altogether for WebP, 10 for progressive JPEG, 8 with transparency.
    """
    pixels = [options.max_image_pixels or 0, processor.own_bounds.max_pixels]
    if video is not None:
        pixels.append(video.max_frame_pixels)
    resized = 8 * max(pixels) + 32 * MIB
    animation = 0 if video is None else 3 * options.max_pixels_per_request
    return Setup(
        processor,
        options.max_source_pixels,
        memory=18 * options.max_source_pixels + 3 * options.max_image_bytes + 2 * resized + 32 * MIB,
        kept_memory=_KEPT_MEMORY,
        file_bytes=max(options.max_image_bytes, resized, animation),
        seconds=options.image_timeout,
        video=video,
        video_seconds=options.video_timeout,
    )
