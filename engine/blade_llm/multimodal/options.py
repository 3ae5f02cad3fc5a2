"""Limits of what images may cost a server; each field is the flag of the same name."""

from __future__ import annotations

import dataclasses
import math

MIB = 1024 * 1024


@dataclasses.dataclass(frozen=True)
class ImageOptions:
    """Limits of one API-server process. Raises :class:`ValueError` where they contradict one another."""

    max_images_per_request: int = 64
    """The API refuses requests with more."""
    max_pixels_per_request: int = 128_000_000
    """Of all its images after they were resized, which an API server holds (3 bytes each) until the engine has them."""
    max_image_pixels: int | None = None
    """Pixels an image is shrunk to at most, in place of the model's own ``max_pixels``; requests may ask for less, not
    for more. None: the model's own."""
    min_image_pixels: int | None = None
    """Pixels an image is enlarged to at least, in place of the model's own ``min_pixels``. None: the model's own."""
    max_source_pixels: int = 64_000_000
    """Width times height of a file, read from its header before anything is decoded. 8000 x 8000, which is Anthropic's
    limit as well."""
    max_image_bytes: int = 20 * MIB
    """Size of a file."""
    image_workers: int = 2
    """Most processes that decode. They start when needed; a server without images has none."""
    image_timeout: float = 4.0
    """CPU seconds (not wall-clock: a busy machine is no image's fault) to decode and resize one image."""
    max_videos_per_request: int = 4
    """The API refuses requests with more."""
    max_video_frames: int = 256
    """Frames of a video: of more that are sent it is refused, of a file with more so many are taken."""
    video_timeout: float = 20.0
    """CPU seconds to decode and resize a video, its frames together."""
    max_waiting_images: int = 64
    """Images that wait for a process; further ones are refused for now."""
    max_waiting_bytes: int = 256 * MIB
    """Bytes of the files that wait or are being decoded; further ones are refused for now."""
    image_worker_idle_seconds: float = 60.0
    """A process without work for so long ends."""

    def __post_init__(self) -> None:
        for name in (
            "max_images_per_request",
            "max_videos_per_request",
            "max_video_frames",
            "max_pixels_per_request",
            "max_source_pixels",
            "max_image_bytes",
            "image_workers",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in ("max_image_pixels", "min_image_pixels"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in ("image_timeout", "video_timeout", "image_worker_idle_seconds"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a positive number of seconds")
        if self.max_waiting_images < 0:
            raise ValueError("max_waiting_images must not be negative")
        if self.max_waiting_bytes < self.max_image_bytes:
            raise ValueError("max_waiting_bytes must not be less than max_image_bytes")
        if (self.min_image_pixels or 0) > (self.max_image_pixels or math.inf):
            raise ValueError("min_image_pixels must not be more than max_image_pixels")
