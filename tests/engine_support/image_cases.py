"""Small image files of every format and colour mode, made by arithmetic alone: the same bytes with the same Pillow."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from blade_llm.multimodal.processors import ImageProcessor, QwenProcessor, TiledProcessor

ORIENTATION: Final = 0x112
SIZES: Final = ((1, 1), (3, 7), (28, 28), (57, 29), (1, 150), (120, 31), (97, 131), (64, 200), (211, 173), (33, 90))
"""(height, width)."""

PROCESSORS: Final[dict[str, ImageProcessor]] = {
    "qwen2-vl": QwenProcessor(),
    "qwen2-vl-small": QwenProcessor(min_pixels=28 * 28, max_pixels=10_000),
    "qwen3-vl": QwenProcessor(4096, 65536, patch_size=16, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
    "internvl": TiledProcessor(56, 56, 14, 4, max_tiles=6, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
}


def waves(height: int, width: int, channels: int) -> npt.NDArray[np.uint8]:
    """[height, width, channels] of smooth colours and sharp edges."""
    rows, columns, channel = np.ogrid[:height, :width, :channels]
    smooth = rows * (3 + channel) + columns * (5 - channel) + channel * 40
    edges = ((rows // 5 + columns // 7) % 2) * 90
    return np.asarray((smooth + edges) % 256, np.uint8)


def _rgb(size: tuple[int, int]) -> Image.Image:
    return Image.fromarray(waves(*size, 3))


def _rgba(size: tuple[int, int]) -> Image.Image:
    return Image.fromarray(waves(*size, 4))


def _deep(size: tuple[int, int], dtype: type[np.generic]) -> Image.Image:
    return Image.fromarray((waves(*size, 1)[..., 0].astype(np.int64) * 3).astype(dtype))


def encode(image: Image.Image, kind: str, **arguments: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **arguments)
    return file.getvalue()


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[ORIENTATION] = orientation
    return tags


def _animated(size: tuple[int, int], kind: str, mode: str) -> bytes:
    first = _rgba(size).convert(mode)
    return encode(first, kind, save_all=True, append_images=[Image.new(mode, first.size), first.rotate(180)])


Make = Callable[[tuple[int, int]], bytes]


def _kinds() -> Iterator[tuple[str, Make]]:
    yield "png-1", lambda size: encode(_rgb(size).convert("1"), "PNG")
    yield "png-L", lambda size: encode(_rgb(size).convert("L"), "PNG")
    yield "png-L-transparent", lambda size: encode(_rgb(size).convert("L"), "PNG", transparency=90)
    yield "png-LA", lambda size: encode(_rgba(size).convert("LA"), "PNG")
    yield "png-P", lambda size: encode(_rgb(size).quantize(200), "PNG")
    yield "png-P-transparent", lambda size: encode(_rgb(size).quantize(30), "PNG", transparency=bytes(range(0, 240, 8)))
    yield "png-P-2-colours", lambda size: encode(_rgb(size).quantize(2), "PNG", transparency=1)
    yield "png-RGB", lambda size: encode(_rgb(size), "PNG")
    yield "png-RGB-transparent", lambda size: encode(_rgb(size), "PNG", transparency=(0, 40, 80))
    yield "png-RGBA", lambda size: encode(_rgba(size), "PNG")
    yield "png-RGBA-turned", lambda size: encode(_rgba(size), "PNG", exif=exif(6))
    yield "png-16", lambda size: encode(_deep(size, np.uint16), "PNG")
    yield "png-animated", lambda size: _animated(size, "PNG", "RGBA")
    yield "jpeg-L", lambda size: encode(_rgb(size).convert("L"), "JPEG")
    yield "jpeg-444", lambda size: encode(_rgb(size), "JPEG", subsampling=0)
    yield "jpeg-420", lambda size: encode(_rgb(size), "JPEG", subsampling=2, quality=60)
    yield "jpeg-progressive", lambda size: encode(_rgb(size), "JPEG", progressive=True)
    yield "jpeg-CMYK", lambda size: encode(_rgb(size).convert("CMYK"), "JPEG")
    for orientation in range(1, 9):
        yield f"jpeg-turned-{orientation}", _turned(orientation)
    yield "jpeg-several", lambda size: _animated(size, "MPO", "RGB")
    yield "webp-lossy", lambda size: encode(_rgb(size), "WEBP", quality=70)
    yield "webp-lossless", lambda size: encode(_rgb(size), "WEBP", lossless=True)
    yield "webp-RGBA", lambda size: encode(_rgba(size), "WEBP", lossless=True, exact=True)
    yield "webp-turned", lambda size: encode(_rgb(size), "WEBP", exif=exif(8))
    yield "webp-animated", lambda size: _animated(size, "WEBP", "RGBA")
    yield "gif-P", lambda size: encode(_rgb(size).quantize(100), "GIF")
    yield "gif-L", lambda size: encode(_rgb(size).convert("L"), "GIF")
    yield "gif-transparent", lambda size: encode(_rgb(size).quantize(16), "GIF", transparency=3)
    yield "gif-animated", lambda size: _animated(size, "GIF", "P")
    yield "bmp-1", lambda size: encode(_rgb(size).convert("1"), "BMP")
    yield "bmp-L", lambda size: encode(_rgb(size).convert("L"), "BMP")
    yield "bmp-P", lambda size: encode(_rgb(size).quantize(60), "BMP")
    yield "bmp-RGB", lambda size: encode(_rgb(size), "BMP")
    yield "bmp-RGBA", lambda size: encode(_rgba(size), "BMP")
    yield "tiff-1", lambda size: encode(_rgb(size).convert("1"), "TIFF", compression="group4")
    yield "tiff-L", lambda size: encode(_rgb(size).convert("L"), "TIFF", compression="packbits")
    yield "tiff-LA", lambda size: encode(_rgba(size).convert("LA"), "TIFF")
    yield "tiff-P", lambda size: encode(_rgb(size).quantize(99), "TIFF", compression="tiff_lzw")
    yield "tiff-RGB", lambda size: encode(_rgb(size), "TIFF", compression="tiff_adobe_deflate")
    yield "tiff-RGBA", lambda size: encode(_rgba(size), "TIFF")
    yield "tiff-CMYK", lambda size: encode(_rgb(size).convert("CMYK"), "TIFF")
    yield "tiff-YCbCr", lambda size: encode(_rgb(size).convert("YCbCr"), "TIFF")
    yield "tiff-16", lambda size: encode(_deep(size, np.uint16), "TIFF")
    yield "tiff-32", lambda size: encode(_deep(size, np.int32), "TIFF")
    yield "tiff-float", lambda size: encode(_deep(size, np.float32), "TIFF")
    yield "tiff-turned", lambda size: encode(_rgb(size), "TIFF", tiffinfo={ORIENTATION: 5})
    yield "tiff-pages", lambda size: _animated(size, "TIFF", "RGB")


def _turned(orientation: int) -> Make:
    return lambda size: encode(_rgb(size), "JPEG", exif=exif(orientation))


class Case(NamedTuple):
    name: str
    processor: str
    data: bytes


def cases() -> Iterator[Case]:
    """Every kind of file in four sizes, by each processor."""
    for index, (kind, make) in enumerate(_kinds()):
        for turn, processor in enumerate(PROCESSORS):
            height, width = size = SIZES[(index + 3 * turn) % len(SIZES)]
            yield Case(f"{kind}-{height}x{width}-{processor}", processor, make(size))


CASES_OF_KINDS: Final[dict[str, bytes]] = {kind: make((33, 46)) for kind, make in _kinds()}
"""One file of every kind."""
