"""How a server takes images: what the model wants, and the limits that flags set."""

from __future__ import annotations

from typing import Final

import msgspec

from blade_llm.multimodal.options import MIB, ImageOptions
from blade_llm.multimodal.processors import ImageProcessor
from blade_llm.multimodal.processors.video import QwenVideo

UNSUPPORTED: Final = "is not supported by this model; send text"
"""What is said of a part that a text model cannot read, after its name."""
NO_VIDEOS: Final = "is not supported here, only images are; send frames of it as image_url"
"""What is said of a video where only images are read."""


class ImageServing(msgspec.Struct, frozen=True, kw_only=True, tag="images"):
    """What each API-server process needs to take images. Crosses process boundaries as msgpack."""

    processor: ImageProcessor
    image_token: int
    """Id of the token that stands for an image in what the chat template writes, and for each embedding in a prompt."""
    video_token: int | None = None
    video: QwenVideo | None = None
    """How videos are read; None: there are none, only images."""
    options: ImageOptions = ImageOptions()
    allowed_local_media_path: tuple[str, ...] = ()
    """As the fields of that name of :class:`~blade_llm.multimodal.fetching.options.FetchOptions`, which takes the HTTP
    stack to import."""
    allowed_media_domains: tuple[str, ...] = ()
    private_media_domains: tuple[str, ...] = ()

    @property
    def max_urls(self) -> int:
        """Most files of one request, frames of videos included."""
        frames = 0 if self.video is None else self.options.max_videos_per_request * self.options.max_video_frames
        return self.options.max_images_per_request + frames

    @property
    def request_bytes(self) -> int:
        """Most bytes of the files of one request."""
        return max(64 * MIB, self.options.max_image_bytes)


class NoImages(msgspec.Struct, frozen=True, kw_only=True, tag="none"):
    """Why a server takes none."""

    reason: str = UNSUPPORTED
    """Said of a part with an image, after its name."""
