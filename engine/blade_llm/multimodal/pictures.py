"""Pixels of Pillow's images, which a program that calls the engine itself has opened; files of strangers are for
:mod:`~blade_llm.multimodal.workers`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from blade_llm.multimodal.content import content_digest
from blade_llm.multimodal.decoding import to_rgb
from blade_llm.multimodal.errors import ImageError
from blade_llm.multimodal.processors import ImageProcessor
from blade_llm.multimodal.settings import PixelBounds
from blade_llm.spec.vision.images import ImagePixels

if TYPE_CHECKING:
    from PIL import Image


def pixels_of(picture: Image.Image, processor: ImageProcessor, bounds: PixelBounds) -> ImagePixels:
    """Turned as EXIF says, in RGB and resized: as a file with the same content. Raises :class:`ImageError`."""
    from PIL import ImageOps

    try:
        picture.load()
        upright = picture
        with contextlib.suppress(Exception):  # an unreadable EXIF turns nothing
            upright = ImageOps.exif_transpose(picture)
        image = to_rgb(upright)
    except (OSError, SyntaxError, ValueError) as error:
        raise ImageError(f"the image cannot be used: {error}") from None
    processor.check_size(image.height, image.width)
    resized = processor.process(image, bounds)
    return ImagePixels(content_digest(*resized), resized.grid, resized.shape, resized.pixels)
