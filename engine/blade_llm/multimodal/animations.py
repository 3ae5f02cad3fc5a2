"""Videos as files that Pillow reads: animated GIF, WebP and PNG. For worker processes only, as :mod:`decoding`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from PIL import Image

from blade_llm.multimodal.decoding import open_file, pillow_limit, to_rgb
from blade_llm.multimodal.errors import ImageError

MAX_FRAMES: Final = 10_000
"""Of a file, whose durations are read before any frame is taken."""
ANIMATED: Final = ("GIF", "WEBP", "PNG")
_USE: Final = (
    'send its frames, {"type": "video", "video": ["data:image/jpeg;base64,…", …], "fps": 2}, or an animated GIF, WebP '
    "or PNG"
)
_CONTAINERS: Final = (
    (4, (b"ftypqt",), "QuickTime"),
    (4, (b"ftypavif", b"ftypavis"), "an AVIF picture"),
    (4, (b"ftyp", b"moov", b"mdat"), "MP4, or of its kind"),
    (0, (b"\x1a\x45\xdf\xa3",), "WebM or Matroska"),
    (8, (b"AVI ",), "AVI"),
    (0, (b"\x00\x00\x01\xba", b"\x00\x00\x01\xb3"), "MPEG"),
    (0, (b"OggS",), "Ogg"),
    (0, (b"FLV\x01",), "Flash video"),
    (0, (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11",), "Windows Media"),
)
_STILL_MILLISECONDS: Final = 100.0
"""Of a frame that says 0, as browsers show it."""


class AnimatedFile:
    """A file of one or more frames. Raises :class:`ImageError`; :class:`MemoryError` when the process has too little.

    Its frames need not be equally long: times are those of a video with as many, all as long as their mean.

    Attributes:
        total: frames.
        rate: of which so many are a second.
    """

    def __init__(self, data: bytes, max_pixels: int, check_size: Callable[[int, int], None]) -> None:
        """``check_size(height, width)`` is called before anything is decoded."""
        for at, starts, name in _CONTAINERS:
            if data[at:].startswith(starts):
                raise ImageError(f"the video is {name}, which is not supported: {_USE}")
        warnings.simplefilter("ignore")  # about the file; a server's log is no place for them
        self._max_pixels = max_pixels
        self._image = open_file(data, max_pixels, "video", _USE)
        if self._image.format not in ANIMATED:
            raise ImageError(f"the video is {self._image.format}, a picture: {_USE}, or send it as image_url")
        self.width, self.height = self._image.size
        check_size(self.height, self.width)
        self._start = int(getattr(self._image, "default_image", False))  # of a PNG: shown where nothing can move
        self.total: int = getattr(self._image, "n_frames", 1) - self._start
        if self.total > MAX_FRAMES:
            raise ImageError(f"the video has {self.total} frames, and the limit is {MAX_FRAMES}: send fewer")
        # exactly: it decides how many are taken
        milliseconds = math.fsum(map(_milliseconds, self._load(range(self.total))))
        self.rate = self.total * 1000 / milliseconds

    def frames(self, indices: Sequence[int]) -> Iterator[Image.Image]:
        """The frames at ``indices``, which ascend, in RGB, as :func:`~blade_llm.multimodal.decoding.to_rgb` says."""
        for image in self._load(indices):
            yield to_rgb(image)

    def _load(self, indices: Sequence[int]) -> Iterator[Image.Image]:
        image = self._image
        for index in indices:
            try:
                with pillow_limit(self._max_pixels):
                    image.seek(self._start + index)
                    image.load()
            except MemoryError:
                raise
            except Exception as error:  # a decoder's, of a file made by anyone
                raise ImageError(
                    f"frame {index + 1} of the {image.format} video is truncated or broken: {error}"
                ) from None
            if image.size != (self.width, self.height):
                raise ImageError(f"frame {index + 1} of the {image.format} video has another size than the first")
            yield image


def _milliseconds(image: Image.Image) -> float:
    """How long the frame that was loaded last is shown."""
    duration = image.info.get("duration")
    return float(duration) if isinstance(duration, int | float) and duration > 0 else _STILL_MILLISECONDS
