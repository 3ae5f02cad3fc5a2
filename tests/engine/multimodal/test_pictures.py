"""Pillow's images become what files with the same content become."""

from __future__ import annotations

import io

import numpy as np
import pytest
from engine_support.image_cases import encode, waves
from PIL import Image

from blade_llm.multimodal.content import content_digest
from blade_llm.multimodal.decoding import decode
from blade_llm.multimodal.errors import ImageError
from blade_llm.multimodal.pictures import pixels_of
from blade_llm.multimodal.processors import ImageProcessor, QwenProcessor, TiledProcessor

PICTURE = Image.fromarray(waves(60, 90, 3))
PROCESSORS = [QwenProcessor(), TiledProcessor(tile_height=28, tile_width=28, patch_size=14, tile_tokens=1)]
MODES = ["RGB", "L", "1", "P", "RGBA", "LA", "CMYK", "I;16"]


def in_mode(mode: str) -> Image.Image:
    if mode == "I;16":
        return Image.fromarray(np.arange(60 * 90, dtype=np.uint16).reshape(60, 90))
    picture = PICTURE.copy()
    if mode in ("RGBA", "LA"):
        picture.putalpha(PICTURE.convert("L"))
    return picture if mode == "RGBA" else picture.convert(mode)


@pytest.mark.parametrize("processor", PROCESSORS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("mode", MODES)
def test_each_mode(processor: ImageProcessor, mode: str) -> None:
    picture = in_mode(mode)
    before = picture.tobytes()
    found = pixels_of(picture, processor, processor.own_bounds)
    assert picture.tobytes() == before
    data = encode(picture, "TIFF" if mode == "CMYK" else "PNG")
    expected = processor.process(decode(data, 1 << 20, processor.check_size), processor.own_bounds)
    assert (found.grid, found.shape, found.pixels) == expected
    assert found.digest == content_digest(*expected)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_it_is_turned_as_exif_says(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    PICTURE.save(file, "PNG", exif=exif)
    processor = QwenProcessor()
    found = pixels_of(Image.open(file), processor, processor.own_bounds)
    assert found.pixels == processor.process(decode(file.getvalue(), 1 << 20, lambda *_: None), processor.own_bounds)[2]
    assert (found.shape[1] > found.shape[2]) == (orientation > 4)


def test_what_cannot_be_used() -> None:
    processor = QwenProcessor()
    data = encode(PICTURE, "PNG")
    with pytest.raises(ImageError, match="cannot be used: "):
        pixels_of(Image.open(io.BytesIO(data[: len(data) // 2])), processor, processor.own_bounds)
    for each in PROCESSORS:
        with pytest.raises(ImageError, match="nothing to see"):
            pixels_of(Image.new("RGB", (1, 1)), each, each.own_bounds)
    with pytest.raises(ImageError, match="200 times"):
        pixels_of(Image.new("RGB", (1000, 2)), processor, processor.own_bounds)
