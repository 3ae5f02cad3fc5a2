"""Positions on three axes are those of transformers."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from engine_support.vision_positions import behind_videos

from blade_llm.models.vision.axis_positions import axis_positions
from blade_llm.spec.vision.images import ImageSpan

MODELS = ("qwen2_vl.modeling_qwen2_vl.Qwen2VLModel", "qwen2_5_vl.modeling_qwen2_5_vl.Qwen2_5_VLModel")
QWEN3 = "qwen3_vl.modeling_qwen3_vl.Qwen3VLModel"


def theirs(
    name: str, merge: int, types: list[int], spans: list[ImageSpan], grids: dict[int, list[Any]], **more: Any
) -> tuple[Any, int]:
    """transformers' positions of tokens of these types (0 text, 1 image, 2 video), and the delta."""
    import importlib

    module, _, kind = name.rpartition(".")
    model = getattr(importlib.import_module(f"transformers.models.{module}"), kind)
    vision = SimpleNamespace(spatial_merge_size=merge, tokens_per_second=2)
    self = SimpleNamespace(config=SimpleNamespace(vision_config=vision))
    self.get_vision_position_ids = lambda *args, **options: model.get_vision_position_ids(self, *args, **options)
    tokens = torch.zeros(1, len(types), dtype=torch.int64)
    image, video = (torch.tensor(grids[kind]) if grids[kind] else None for kind in (1, 2))
    found, _ = model.get_rope_index(
        self, tokens, torch.tensor([types]), image_grid_thw=image, video_grid_thw=video, **more
    )
    positions = behind_videos(found[:, 0], spans, merge)
    return positions.numpy(), int(positions.max()) + 1 - len(types)


def random_prompt(
    seed: int, merge: int, kinds: tuple[int, ...], frames: int = 1
) -> tuple[list[int], list[ImageSpan], dict[int, list[Any]]]:
    """Types of tokens, and 0 to 8 images or videos of odd sizes, with text between them."""
    made = random.Random(seed)
    types, spans = [0] * made.randrange(3), []
    grids: dict[int, list[Any]] = {1: [], 2: []}
    for _ in range(made.randrange(9)):
        kind = made.choice(kinds)
        grid = (made.randint(1, frames) if kind == 2 else 1, merge * made.randint(1, 9), merge * made.randint(1, 9))
        count = grid[0] * grid[1] * grid[2] // merge**2
        spans.append(ImageSpan(len(types), count, bytes(32), grid))
        grids[kind].append(list(grid))
        types += [kind] * count + [0] * made.randint(1, 5)
    return types or [0], spans, grids


@pytest.mark.parametrize("merge", [2, 3])
@pytest.mark.parametrize("model", [*MODELS, QWEN3])
def test_images(model: str, merge: int) -> None:
    for seed in range(40):
        types, spans, grids = random_prompt(seed, merge, kinds=(1,))
        positions, delta = axis_positions(len(types), spans, merge)
        expected, theirs_delta = theirs(model, merge, types, spans, grids)
        np.testing.assert_array_equal(positions, expected)
        assert delta == theirs_delta
        assert positions.dtype == np.int32
        assert delta <= 0


@pytest.mark.parametrize("model", MODELS)
def test_videos(model: str) -> None:
    """Frames of Qwen2-VL are 1 from each other, those of Qwen2.5-VL as far as they are in time."""
    timed = "qwen2_5" in model
    for seed in range(40):
        types, spans, grids = random_prompt(seed, 2, kinds=(1, 2), frames=5)
        made = random.Random(seed)
        seconds = [made.choice([0.5, 1.0, 0.3, 2.7]) for _ in grids[2]]
        more = {"second_per_grid_ts": seconds} if timed else {}
        order = iter(seconds)
        intervals = [2 * next(order) if timed and types[span.start] == 2 else 1.0 for span in spans]
        spans = [msgspec.structs.replace(span, interval=each) for span, each in zip(spans, intervals, strict=True)]
        positions, delta = axis_positions(len(types), spans, 2)
        expected, theirs_delta = theirs(model, 2, types, spans, grids, **more)
        np.testing.assert_array_equal(positions, expected)
        assert delta == theirs_delta


def test_text_begins_behind_the_last_frame() -> None:
    """Numbers of transformers 5.2 for Qwen2.5-VL, in https://github.com/huggingface/transformers/issues/45381."""
    video = ImageSpan(15, 16128, bytes(32), (84, 24, 32), 4.0)
    positions, delta = axis_positions(15 + 16128 + 10, [video], 2)
    assert positions[:, 15].tolist() == [15, 15, 15]
    assert positions[:, video.end - 1].tolist() == [347, 26, 30]
    np.testing.assert_array_equal(positions[:, video.end :], np.tile(np.arange(348, 358), (3, 1)))
    assert delta == 358 - 16153


def test_a_video_of_qwen3_is_an_image_for_each_frame() -> None:
    types = [0, 0, *[2] * 6, 0, 0, *[2] * 6, 0]
    spans = [ImageSpan(2, 6, bytes(32), (1, 4, 6)), ImageSpan(10, 6, bytes(32), (1, 4, 6))]
    positions, delta = axis_positions(len(types), spans, 2)
    expected, theirs_delta = theirs(QWEN3, 2, types, spans, {1: [], 2: [[2, 4, 6]]})
    np.testing.assert_array_equal(positions, expected)
    assert delta == theirs_delta


def test_text_alone_counts() -> None:
    positions, delta = axis_positions(5, [], 2)
    np.testing.assert_array_equal(positions, np.tile(np.arange(5), (3, 1)))
    assert delta == 0
    positions, delta = axis_positions(0, [], 2)
    assert (positions.shape, delta) == ((3, 0), 0)


@pytest.mark.parametrize(
    ("spans", "reason"),
    [
        ([ImageSpan(0, 5, bytes(32), (1, 4, 4))], "image 0 has 5 tokens, but a grid of"),
        ([ImageSpan(0, 0, bytes(32), (1, 0, 4))], "image 0 has 0 tokens, but a grid of"),
        ([ImageSpan(7, 4, bytes(32), (1, 4, 4))], "image 0 at 7 to 11 overlaps another or the prompt's 10"),
        ([ImageSpan(1, 4, bytes(32), (1, 4, 4)), ImageSpan(4, 1, bytes(32), (1, 2, 2))], "image 1 at 4 to 5 overlaps"),
        ([ImageSpan(-1, 1, bytes(32), (1, 2, 2))], "image 0 at -1 to 0 overlaps"),
    ],
)
def test_spans_that_make_no_sense_are_refused(spans: list[ImageSpan], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        axis_positions(10, spans, 2)
