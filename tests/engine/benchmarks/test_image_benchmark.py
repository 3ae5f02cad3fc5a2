"""The benchmark of pictures gives both sides the same, and compares them as it says."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.engine.images.__main__ import _compared
from benchmarks.engine.images.model import IMAGE, MERGE, PATCH, patches_of, picture, prompt_of, tokens_of
from engine_support.normalise import normalised_patches

from blade_llm.models.raw_config import RawConfig
from blade_llm.models.vision.config import read_vision

CONFIG = {
    "model_type": "qwen2_vl",
    "hidden_size": 1536,
    "image_token_id": IMAGE,
    "vision_config": {"hidden_size": 1536, "depth": 1},
}


def test_transformers_gets_the_same_pixels() -> None:
    spec = read_vision(RawConfig(CONFIG), {})
    assert spec is not None
    assert (spec.patch_size, spec.merge_size) == (PATCH, MERGE)
    image = picture(84, 3)
    np.testing.assert_allclose(patches_of(image).numpy(), normalised_patches(image, spec), atol=1e-5)
    assert tokens_of(image) == spec.count(image.grid)


def test_no_picture_is_found_in_a_cache_but_itself() -> None:
    one, other = picture(28, 1), picture(28, 1)
    assert one.pixels == other.pixels
    assert one.digest != other.digest


def test_a_prompt_has_the_picture_where_it_says() -> None:
    image = picture(56, 1)
    tokens, span = prompt_of(image, [1, 2, 3], [4, 5])
    assert tokens[span.start : span.end] == [IMAGE] * tokens_of(image)
    assert len(tokens) == 3 + 1 + span.count + 1 + 2


def test_ratios_are_of_rounds_and_noise_of_ours_alone() -> None:
    rounds = [
        {"ours": 1.0, "again": 1.0, "transformers": 3.0},
        {"ours": 2.0, "again": 1.0, "transformers": 3.0},
        {"ours": 1.0, "again": 1.5, "transformers": 2.0},
    ]
    figures = {figure.name: figure for figure in _compared("x", 4, rounds)}
    assert figures["x_pictures_ratio"].value == 2.0
    assert figures["x_pictures_noise"].value == 1.5
    assert figures["x_pictures_least"].value == pytest.approx(1.6)
    assert figures["x_pictures_transformers"].value == pytest.approx(4 / 3)
    assert figures["x_pictures_ratio"].reached
