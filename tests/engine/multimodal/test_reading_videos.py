"""Processor files of videos: those of published models, and those that are not supported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blade_llm.multimodal.errors import ProcessorFilesError
from blade_llm.multimodal.processors import QwenProcessor, TiledProcessor
from blade_llm.multimodal.processors.reading_videos import read_video
from blade_llm.multimodal.processors.video import QwenVideo

HALVES = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
IMAGES = QwenProcessor()
OF_QWEN3 = QwenProcessor(65536, 16777216, patch_size=16, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
PREPROCESSOR = {"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14}


def folder_of(path: Path, kind: str, vision: object = None, **files: object) -> Path:
    (path / "config.json").write_text(json.dumps({"model_type": kind, "vision_config": vision or {}}))
    for name, value in files.items():
        (path / f"{name}.json").write_text(json.dumps(value))
    return path


@pytest.mark.parametrize(
    ("kind", "vision", "expected"),
    [
        ("qwen2_vl", {}, QwenVideo(3136, 12845056)),
        ("qwen2_5_vl", {"tokens_per_second": 2}, QwenVideo(3136, 12845056, tokens_per_second=2.0)),
        ("qwen2_5_vl", {}, QwenVideo(3136, 12845056, tokens_per_second=4.0)),
    ],
)
def test_without_a_file_of_its_own(kind: str, vision: object, expected: QwenVideo, tmp_path: Path) -> None:
    """Bounds are those of images."""
    assert read_video(folder_of(tmp_path, kind, vision, preprocessor_config=PREPROCESSOR), IMAGES) == expected


@pytest.mark.parametrize("kind", ["qwen3_vl", "qwen3_vl_moe"])
def test_qwen3(kind: str, tmp_path: Path) -> None:
    file = {"size": {"longest_edge": 25165824, "shortest_edge": 4096}, "patch_size": 16, **HALVES}
    folder = folder_of(tmp_path, kind, preprocessor_config=PREPROCESSOR, video_preprocessor_config=file)
    assert read_video(folder, OF_QWEN3) == QwenVideo(4096, 25165824, patch_size=16, timestamps=True)
    nested = {"video_processor": {"fps": 1.5, "max_frames": 99, "size": {"longest_edge": 9000, "shortest_edge": 90}}}
    folder_of(tmp_path, kind, processor_config=nested)
    expected = QwenVideo(90, 9000, patch_size=16, fps=1.5, max_frames=99, timestamps=True)
    assert read_video(folder, OF_QWEN3) == expected


def test_defaults_of_the_processors(tmp_path: Path) -> None:
    assert read_video(folder_of(tmp_path, "qwen2_vl", video_preprocessor_config={}), IMAGES) == QwenVideo()
    expected = QwenVideo(128 * 32 * 32, 768 * 32 * 32, patch_size=16, timestamps=True)
    assert read_video(folder_of(tmp_path, "qwen3_vl", video_preprocessor_config={}), OF_QWEN3) == expected


def test_models_without_videos(tmp_path: Path) -> None:
    assert read_video(tmp_path, TiledProcessor(16, 16, 4, 4)) is None
    with pytest.raises(ProcessorFilesError, match=r"video_preprocessor_config.json is missing"):
        read_video(folder_of(tmp_path, "qwen2_vl"), IMAGES)


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ({"num_frames": 8}, "num_frames is not supported"),
        ({"cap_pixels_per_frame": True}, "cap_pixels_per_frame is not supported"),
        ({"do_resize": False}, "do_resize must be true"),
        ({"patch_size": 16}, "patch_size is 16, of images 14"),
        (HALVES, r"not normalised as images are \(mean\)"),
        ({"size": {"shortest_edge": 9}}, "longest_edge must be a positive whole number"),
        ({"fps": 0}, "fps must be a positive number"),
        ({"max_frames": "9"}, "max_frames must be a positive whole number"),
    ],
)
def test_what_is_not_supported(file: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ProcessorFilesError, match=said):
        read_video(folder_of(tmp_path, "qwen2_vl", video_preprocessor_config=file), IMAGES)
