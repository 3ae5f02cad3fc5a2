"""Decode a stranger's file with Pillow. For worker processes only: whatever a decoder does there, it does alone.

The content says what a file is, never the media type it was sent with: vLLM and transformers do not look at the type
either (Anthropic refuses one that is wrong, OpenAI does not say). Of a file with several pictures (GIF, animated WebP
and PNG, TIFF with pages, MPO) the first one is used, as there; nothing else of it is decoded.
"""

from __future__ import annotations

import contextlib
import io
import struct
import warnings
from collections.abc import Callable, Iterator
from typing import Final

from PIL import Image, ImageOps

from blade_llm.multimodal.errors import ImageError

FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""``JPEG`` includes MPO, which phones write."""
_USE: Final = "send PNG, JPEG, WebP, GIF, BMP or TIFF"
_OTHERS: Final = (
    (4, (b"ftypavif", b"ftypavis"), "AVIF"),
    (4, (b"ftypheic", b"ftypheix", b"ftyphevc", b"ftypmif1", b"ftypmsf1"), "HEIC"),
    (4, (b"ftyp",), "a video"),
    (0, (b"\xff\x0a", b"\x00\x00\x00\x0cJXL "), "JPEG XL"),
    (0, (b"\x00\x00\x00\x0cjP  ", b"\xff\x4f\xff\x51"), "JPEG 2000"),
    (0, (b"%PDF-",), "PDF"),
    (0, (b"\x00\x00\x01\x00",), "an icon (ICO)"),
    (0, (b"8BPS",), "a Photoshop file"),
)
_STRIP_PIXELS: Final = 1 << 20


def decode(data: bytes, max_pixels: int, check_size: Callable[[int, int], None]) -> Image.Image:
    """The first picture of a file, upright and in RGB. ``check_size(height, width)`` is called before anything is
    decoded. Raises :class:`ImageError`; :class:`MemoryError` when the process has too little.

    Equal to ``transformers.image_utils.load_image`` up to its last line: it turns the picture as EXIF says; the colours
    are then those of its image processors (see :func:`to_rgb`). An unreadable EXIF turns nothing.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the file; a server's log is no place for them
        image = open_file(data, max_pixels)
        check_size(image.height, image.width)
        try:
            with pillow_limit(max_pixels):  # frames can be larger than the picture
                image.load()
        except MemoryError:
            raise
        except Exception as error:  # a decoder's, of a file made by anyone
            raise ImageError(f"the {image.format} image is truncated or broken: {error}") from None
        try:
            ImageOps.exif_transpose(image, in_place=True)
        except MemoryError:
            raise
        except Exception:
            pass
        try:
            return to_rgb(image)
        except ValueError as error:
            raise ImageError(f"the {image.format} image's colours ({image.mode}) are not supported: {error}") from None


@contextlib.contextmanager
def pillow_limit(pixels: int | None) -> Iterator[None]:
    """Pillow's own limit; exceeding twice its value is an error there."""
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None if pixels is None else (pixels + 1) // 2
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def open_file(data: bytes, max_pixels: int, name: str = "image", use: str = _USE) -> Image.Image:
    """Read the header. ``name``, ``use``: what errors call the file, and say to send in its place.

    Raises :class:`ImageError`; :class:`MemoryError` when the process has too little.
    """
    if not data:
        raise ImageError(f"the {name} is empty: it has 0 bytes")
    _check_webp(data, max_pixels)
    try:
        with pillow_limit(None):  # ours is checked instead, which says more
            image = Image.open(io.BytesIO(data), formats=FORMATS)
    except MemoryError:
        raise
    except Exception:
        raise ImageError(_unidentified(data, name, use)) from None
    _check_pixels(*image.size, max_pixels)
    return image


def _check_pixels(width: int, height: int, max_pixels: int) -> None:
    if width < 1 or height < 1:
        raise ImageError(f"the image has no pixels: its header says {width} x {height}")
    if width * height > max_pixels:
        raise ImageError(
            f"the image has {width} x {height} = {width * height} pixels, and the limit is {max_pixels}: "
            "send a smaller one"
        )


def _check_webp(data: bytes, max_pixels: int) -> None:
    """Pillow's decoder of WebP asks for the memory of the whole picture when it opens the file."""
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(data) < 30:
        return
    kind = data[12:16]
    if kind == b"VP8X":  # 24 bits each, less one
        width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
    elif kind == b"VP8L":  # 14 bits each, less one
        bits = int.from_bytes(data[21:25], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif kind == b"VP8 ":  # 14 bits each, and two of scaling
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
    else:
        return
    _check_pixels(width, height, max_pixels)


def _unidentified(data: bytes, name: str, use: str) -> str:
    for at, starts, kind in _OTHERS:
        if data[at:].startswith(starts):
            return f"the {name} is {kind}, which is not supported: {use}"
    text = data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if b"<svg" in text:
        return f"the {name} is SVG, which is not supported: {use}"
    if text.startswith((b"<!doctype html", b"<html")):
        return f"the {name} is a web page (HTML), perhaps one about the {name} or an error: {use}"
    return f"the {name}'s {len(data)} bytes are of no known format, or broken at their beginning: {use}"


def to_rgb(image: Image.Image) -> Image.Image:
    """As transformers' ``convert_to_rgb``: what is transparent (alpha, a transparent colour or palette entry) is put on
    white; everything else is Pillow's ``convert("RGB")``, which makes 16 bit grey values above 255 white.

    ``load_image`` there drops alpha instead, and with it what a logo or drawing stands on; vLLM puts on white too.
    Composed in strips, since a whole picture would need four times its memory.
    """
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image if image.mode == "RGB" else image.convert("RGB")
    opaque = Image.new("RGB", image.size)
    step = max(1, _STRIP_PIXELS // image.width)
    for top in range(0, image.height, step):
        strip = image.crop((0, top, image.width, min(image.height, top + step))).convert("RGBA")
        white = Image.new("RGBA", strip.size, (255, 255, 255, 255))
        opaque.paste(Image.alpha_composite(white, strip).convert("RGB"), (0, top))
    return opaque
