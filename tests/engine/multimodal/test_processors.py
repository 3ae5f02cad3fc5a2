"""Pixels, grids and counts equal those of transformers' processors for PIL images, bit by bit."""

from __future__ import annotations

import hashlib

import msgspec
import numpy as np
import pytest
from engine_support.image_cases import PROCESSORS, Case, cases, encode, waves
from engine_support.image_references import (
    STORED,
    Expected,
    file_sha256,
    reference,
    reference_values,
    samples,
    sha256,
)
from engine_support.normalise import image_pixels, normalised_patches, normalised_pixels
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as expected_size

from blade_llm.multimodal.content import content_digest
from blade_llm.multimodal.decoding import decode
from blade_llm.multimodal.errors import ImageError
from blade_llm.multimodal.processors import ImageProcessor, QwenProcessor, TiledProcessor
from blade_llm.multimodal.processors.smart_resize import smart_resize
from blade_llm.multimodal.settings import PixelBounds
from blade_llm.spec.vision.images import ImagePixels

SIDES = st.integers(1, 5000)
CASES = {case.name: case for case in cases()}


def _pixels(processor: ImageProcessor, data: bytes, bounds: PixelBounds | None = None) -> ImagePixels:
    image = decode(data, 1 << 24, lambda height, width: None)
    return image_pixels(*processor.process(image, bounds or processor.own_bounds))


def _values(processor: ImageProcessor, pixels: ImagePixels) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    if isinstance(processor, QwenProcessor):
        return normalised_patches(pixels, processor)
    return normalised_pixels(pixels, processor)


@pytest.fixture(scope="module")
def stored() -> dict[str, Expected]:
    return msgspec.json.decode(STORED.read_bytes(), type=dict[str, Expected])


def test_there_are_stored_values_for_every_case_and_no_other(stored: dict[str, Expected]) -> None:
    assert set(stored) == set(CASES)
    assert len(stored) >= 200


@pytest.mark.parametrize("name", CASES)
def test_files_of_every_format_and_mode(name: str, stored: dict[str, Expected]) -> None:
    case, expected = CASES[name], stored[name]
    assert file_sha256(case.data) == expected.file_sha256, "Pillow writes another file: make the stored values again"
    processor = PROCESSORS[case.processor]
    pixels = _pixels(processor, case.data)
    values = _values(processor, pixels)
    assert (pixels.grid, values.shape) == (expected.grid, expected.shape)
    assert samples(values) == expected.samples
    assert sha256(values) == expected.sha256


@pytest.mark.parametrize("case", list(CASES.values())[::5], ids=lambda case: case.name)
def test_the_same_beside_transformers_itself(case: Case) -> None:
    processor = PROCESSORS[case.processor]
    pixels = _pixels(processor, case.data)
    grid, values = reference_values(processor, case.data)
    assert pixels.grid == grid
    np.testing.assert_array_equal(_values(processor, pixels), values)


@pytest.mark.parametrize(("height", "width"), [(600, 800), (1, 199), (1500, 90)])
@pytest.mark.parametrize("name", PROCESSORS)
def test_counts(name: str, height: int, width: int) -> None:
    """Of transformers' own utility, which vLLM uses, from the size alone."""
    processor = PROCESSORS[name]
    grid = processor.grid(height, width, processor.own_bounds)
    patches = reference(processor).get_number_of_image_patches(height, width, {})
    if isinstance(processor, QwenProcessor):
        assert processor.count(grid) == patches // processor.merge_size**2
    else:
        assert processor.count(grid) == patches * processor.tile_tokens


@given(SIDES, SIDES, st.sampled_from([28, 32, 56]), st.integers(1, 1 << 16), st.integers(0, 1 << 24))
@example(1, 1, 28, 56 * 56, 0)
@example(200, 1, 28, 1, 0)
@example(201, 1, 28, 1, 0)
def test_smart_resize(height: int, width: int, factor: int, least: int, more: int) -> None:
    bounds = PixelBounds(least, least + more)
    try:
        expected = expected_size(height, width, factor, bounds.min_pixels, bounds.max_pixels)
    except ValueError:
        with pytest.raises(ImageError, match="200 times"):
            smart_resize(height, width, factor, bounds)
        return
    assert smart_resize(height, width, factor, bounds) == expected


@given(SIDES, SIDES, st.integers(1, 12), st.integers(0, 12), st.sampled_from([(56, 56), (448, 448), (30, 90)]))
def test_arrangements_of_tiles(height: int, width: int, least: int, more: int, tile: tuple[int, int]) -> None:
    processor = TiledProcessor(*tile, patch_size=2, tile_tokens=4, min_tiles=least, max_tiles=least + more)
    columns, rows = get_optimal_tiled_canvas((height, width), tile, least, least + more)
    tiles = columns * rows + (columns * rows > 1)
    assert processor.grid(height, width, processor.own_bounds) == (tiles, tile[0] // 2, tile[1] // 2)


@given(SIDES, SIDES, st.integers(1, 1 << 22))
def test_what_is_resized_is_bounded(height: int, width: int, most: int) -> None:
    """Bounds hold, but for a row or column of patches where one side is very short."""
    for processor in PROCESSORS.values():
        try:
            _, rows, columns = processor.grid(height, width, PixelBounds(1, most))
        except ImageError:
            continue
        if isinstance(processor, QwenProcessor):
            unit = processor.patch_size * processor.merge_size
            pixels = rows * columns * processor.patch_size**2
            assert pixels <= max(most, unit * max(unit, max(height, width) / (height * width / most) ** 0.5))


def test_equal_pixels_have_equal_digests() -> None:
    processor = PROCESSORS["qwen2-vl"]
    image = Image.fromarray(waves(64, 80, 3))
    png, bmp = (_pixels(processor, encode(image, kind)) for kind in ("PNG", "BMP"))
    other = _pixels(processor, encode(image.rotate(180), "PNG"))
    assert png == bmp
    assert len(png.digest) == 32
    assert other.digest != png.digest
    assert other.shape == png.shape


def test_digests_tell_shapes_apart() -> None:
    pixels = bytes(2 * 4 * 8 * 3)
    digests = {
        content_digest((1, 2, 4), (1, 4, 16, 3), pixels),
        content_digest((1, 4, 2), (1, 4, 16, 3), pixels),
        content_digest((1, 2, 4), (2, 4, 8, 3), pixels),
        hashlib.sha256(pixels).digest(),
    }
    assert len(digests) == 4
    with pytest.raises(ValueError, match="shape"):
        image_pixels((1, 2, 4), (1, 4, 15, 3), pixels)


def test_frames_of_a_video_fill_the_patches_in_time() -> None:
    """Two frames make one patch; the first half of its values is the first frame's."""
    processor = QwenProcessor()
    frames = np.stack([waves(28, 56, 3), 255 - waves(28, 56, 3)])
    patches = normalised_patches(image_pixels((1, 2, 4), (2, 28, 56, 3), frames.tobytes()), processor)
    single = normalised_patches(image_pixels((1, 2, 4), (1, 28, 56, 3), frames[0].tobytes()), processor)
    shape = (8, 3, 2, 14, 14)
    np.testing.assert_array_equal(patches.reshape(shape)[:, :, 0], single.reshape(shape)[:, :, 1])
    assert not np.array_equal(patches.reshape(shape)[:, :, 1], single.reshape(shape)[:, :, 1])
