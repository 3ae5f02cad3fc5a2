"""What a request may ask of its images, within the limits of the server and of the model."""

from __future__ import annotations

from typing import Any

import pytest

from blade_llm.multimodal.errors import ImageError
from blade_llm.multimodal.options import ImageOptions
from blade_llm.multimodal.processors import QwenProcessor, TiledProcessor
from blade_llm.multimodal.settings import ImageSettings, PixelBounds

OWN = PixelBounds(3_136, 1_003_520)


@pytest.mark.parametrize(
    ("settings", "options", "bounds"),
    [
        ({}, {}, (3_136, 1_003_520)),
        ({"detail": "auto"}, {}, (3_136, 1_003_520)),
        ({"detail": "high"}, {}, (3_136, 1_003_520)),
        ({"detail": "original"}, {}, (3_136, 1_003_520)),
        ({"detail": "low"}, {}, (3_136, 512 * 512)),
        ({"detail": "low", "max_pixels": 1000_000}, {}, (3_136, 512 * 512)),
        ({"detail": "low", "max_pixels": 10_000}, {}, (3_136, 10_000)),
        ({"max_pixels": 2_000}, {}, (2_000, 2_000)),
        ({"min_pixels": 1}, {}, (1, 1_003_520)),
        ({"min_pixels": 50_000, "max_pixels": 50_000}, {}, (50_000, 50_000)),
        ({}, {"max_image_pixels": 5_000_000}, (3_136, 5_000_000)),
        ({}, {"max_image_pixels": 100_000}, (3_136, 100_000)),
        ({"max_pixels": 4_000_000}, {"max_image_pixels": 5_000_000}, (3_136, 4_000_000)),
        ({}, {"min_image_pixels": 90_000}, (90_000, 1_003_520)),
        ({"max_pixels": 40_000}, {"min_image_pixels": 90_000}, (40_000, 40_000)),
    ],
)
def test_bounds(settings: dict[str, Any], options: dict[str, Any], bounds: tuple[int, int]) -> None:
    assert ImageSettings(**settings).bounds(OWN, ImageOptions(**options)) == PixelBounds(*bounds)


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({"max_pixels": 1_003_521}, {}, "max_pixels must be between 1 and 1003520 here, not 1003521"),
        ({"max_pixels": 100_001}, {"max_image_pixels": 100_000}, "between 1 and 100000"),
        ({"max_pixels": 0}, {}, "max_pixels"),
        ({"min_pixels": 0}, {}, "min_pixels"),
        ({"min_pixels": 2_000_000}, {}, "min_pixels must be between 1 and 1003520"),
        ({"min_pixels": 300_000, "detail": "low"}, {}, "min_pixels must be between 1 and 262144"),
        ({"detail": "huge"}, {}, "auto, low, high, original, not 'huge'"),
    ],
)
def test_refusals(settings: dict[str, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ImageError, match=message):
        ImageSettings(**settings).bounds(OWN, ImageOptions(**options))


@pytest.mark.parametrize(
    "fields",
    [
        {"image_workers": 0},
        {"image_timeout": 0.0},
        {"image_timeout": float("nan")},
        {"image_timeout": float("inf")},
        {"max_image_pixels": 0},
        {"max_images_per_request": 0},
        {"max_waiting_images": -1},
        {"max_waiting_bytes": 1},
        {"min_image_pixels": 2, "max_image_pixels": 1},
    ],
)
def test_options_that_contradict(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        ImageOptions(**fields)


def test_low_detail_is_few_tokens() -> None:
    options, low = ImageOptions(), ImageSettings("low")
    qwen = QwenProcessor(max_pixels=12_845_056)
    assert qwen.count(qwen.grid(3000, 4000, qwen.own_bounds)) > 15_000
    assert qwen.count(qwen.grid(3000, 4000, low.bounds(qwen.own_bounds, options))) <= 512 * 512 // 28**2
    tiled = TiledProcessor(448, 448, 14, 256)
    assert tiled.count(tiled.grid(3000, 4000, tiled.own_bounds)) == 13 * 256
    assert tiled.count(tiled.grid(3000, 4000, low.bounds(tiled.own_bounds, options))) == 256


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ({}, (None, None)),
        ({"min_pixels": 5}, (5, None)),
        ({"min_pixels": 5, "max_pixels": 9}, (5, 9)),
        ({"size": {"shortest_edge": 5, "longest_edge": 9}}, (5, 9)),
        ({"size": {"longest_edge": 9}, "max_pixels": 8}, (None, 8)),
    ],
)
def test_processor_kwargs(kwargs: dict[str, Any], expected: tuple[int | None, int | None]) -> None:
    assert ImageSettings("low").with_processor_kwargs(kwargs) == ImageSettings("low", *expected)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"do_resize": False, "fps": 2}, "do_resize, fps is not supported"),
        ({"size": {"height": 9}}, "height is not supported"),
        ({"size": 9}, "size must be an object"),
        ({"max_pixels": "9"}, "max_pixels must be a whole number, not '9'"),
        ({"min_pixels": True}, "min_pixels must be a whole number"),
        ({"size": {"longest_edge": 9.5}}, "max_pixels must be a whole number"),
    ],
)
def test_processor_kwargs_that_are_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ImageError, match=message):
        ImageSettings().with_processor_kwargs(kwargs)
