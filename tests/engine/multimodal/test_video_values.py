"""Sizes, frames and times of videos are those of transformers' processors, pixels those of Pillow: of the values that
are stored some differ by 1 of 255."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from engine_support.normalise import normalised_patches
from engine_support.video_references import BOUNDS, CASES, SAMPLED, STORED, Stored, VideoCase, some
from PIL import Image

from blade_llm.multimodal.processors.video import QwenVideo
from blade_llm.multimodal.request_videos import VideoPixels, assemble
from blade_llm.multimodal.worker import Frames

VIDEOS = {
    "qwen2_vl": QwenVideo(*BOUNDS["qwen2_vl"]),
    "qwen3_vl": QwenVideo(*BOUNDS["qwen3_vl"], patch_size=16, timestamps=True),
}
RAW = SimpleNamespace(rescale=1.0, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), temporal_patch_size=2, merge_size=2)


pytestmark = pytest.mark.skipif(not STORED.exists(), reason="engine_support.video_references writes the values")


@pytest.fixture(scope="module")
def stored() -> Stored:
    return msgspec.json.decode(STORED.read_bytes(), type=Stored)


def patches_of(video: QwenVideo, found: VideoPixels) -> np.ndarray[Any, Any]:
    spec: Any = SimpleNamespace(**vars(RAW), patch_size=video.patch_size)
    return np.concatenate([normalised_patches(image, spec) for image in found.images])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_grids_and_pixels(case: VideoCase, stored: Stored) -> None:
    """Odd numbers of frames, one frame, tiny ones, long ones. A value may be 1 away from torchvision's."""
    video, frames = VIDEOS[case.family], case.arrays
    size = video.size(case.frames, case.height, case.width, video.own_bounds)
    pixels = b"".join(video.resize(Image.fromarray(frame), size) for frame in frames)
    given = Frames((case.frames, *size, 3), pixels, tuple(range(case.frames)), rate=2.0)
    found = assemble(video, given, 2.0, 1 << 24)
    grid, values = stored.videos[case.name]
    grids = [image.grid for image in found.images]
    assert (sum(each[0] for each in grids), *grids[0][1:]) == grid
    assert len(grids) == (grid[0] if video.timestamps else 1)
    ours = np.array(some(patches_of(video, found)))
    assert np.abs(ours - np.array(values)).max() <= 1
    assert np.mean(ours != np.array(values)) < 0.1


def test_all_cases_are_stored(stored: Stored) -> None:
    assert set(stored.videos) == {case.name for case in CASES}
    assert len(stored.videos) > 30


@pytest.mark.parametrize("family", VIDEOS)
def test_which_frames_are_taken_and_when_they_are(family: str, stored: Stored) -> None:
    video = VIDEOS[family]
    assert [case[:3] for case in stored.sampled[family]] == SAMPLED
    for total, rate, fps, indices, seconds in stored.sampled[family]:
        assert video.sample(total, rate, fps, 10_000) == list(indices)
        assert video.seconds(indices, rate) == pytest.approx(seconds)
        assert len(video.sample(total, rate, fps, 6)) <= 6
    assert video.sample(1, 10.0, None, 9) == [0]
    assert video.sample(40, 10.0, None, 100) == video.sample(40, 10.0, 2.0, 100)
