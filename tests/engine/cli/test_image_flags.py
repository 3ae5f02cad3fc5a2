"""What flags and a model's files make of images."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from engine_support.served_vision import INTERNVL_SPECIAL, QWEN_SPECIAL
from engine_support.tiny_text import write_tokenizer
from examples.families.tokenizers import byte_level_tokenizer

from blade_llm.api.images.serving import ImageServing, NoImages
from blade_llm.cli.flags import FlagParser
from blade_llm.cli.images.serving import image_serving
from blade_llm.cli.server_flags import GROUPS
from blade_llm.multimodal.options import ImageOptions
from blade_llm.multimodal.processors import QwenProcessor
from blade_llm.multimodal.processors.video import QwenVideo
from blade_llm.text.tokenizer import Tokenizer

CONFIG: Any = SimpleNamespace(vision=SimpleNamespace(image_token=5, video_token=6))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path, byte_level_tokenizer(QWEN_SPECIAL))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_vl", "vision_config": {}}))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"max_pixels": 4000}))
    return tmp_path


def serving(folder: Path, *words: str, config: Any = CONFIG) -> ImageServing | NoImages:
    flags = FlagParser("blade_llm_server", "", list(GROUPS.items())).parse(["--model", "m", *words])
    return image_serving(flags, folder, config, Tokenizer(folder))


def test_flags_are_the_fields_of_the_options(folder: Path) -> None:
    found = serving(folder)
    processor, video = QwenProcessor(max_pixels=4000), QwenVideo(max_pixels=4000)
    assert found == ImageServing(processor=processor, image_token=5, video_token=6, video=video)
    words = (
        *("--max_images_per_request", "3", "--max_image_pixels", "900", "--min_image_pixels=800"),
        *("--max_image_bytes", "500MiB", "--max_source_pixels", "1000", "--image_workers", "4", "--image_timeout", "2"),
        *("--max_videos_per_request", "2", "--max_video_frames", "9", "--video_timeout", "7"),
        *("--allowed_local_media_path", "/a", "/b", "--allowed_media_domains", "*.example", "cdn.example.com"),
        *("--private_media_domains", "minio.svc"),
    )
    found = serving(folder, *words)
    assert isinstance(found, ImageServing)
    assert found.options == ImageOptions(
        max_images_per_request=3,
        max_image_pixels=900,
        min_image_pixels=800,
        max_image_bytes=500 << 20,
        max_source_pixels=1000,
        image_workers=4,
        image_timeout=2.0,
        max_videos_per_request=2,
        max_video_frames=9,
        video_timeout=7.0,
        max_waiting_bytes=500 << 20,
    )
    assert found.request_bytes == 500 << 20
    assert found.allowed_local_media_path == ("/a", "/b")
    assert found.allowed_media_domains == ("*.example", "cdn.example.com")
    assert found.private_media_domains == ("minio.svc",)
    sent = msgspec.msgpack.encode(found)  # to other API-server processes
    assert msgspec.msgpack.decode(sent, type=ImageServing | NoImages) == found


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--min_image_pixels", "9", "--max_image_pixels", "8"], "min_image_pixels must not be more"),
        (["--image_timeout", "0"], "image_timeout must be a positive number"),
        (["--allowed_local_media_path", "relative"], "allowed_local_media_path"),
        (["--allowed_local_media_path", "/"], "allowed_local_media_path"),
        (["--allowed_media_domains", "http://x"], "http://x"),
    ],
)
def test_flags_that_cannot_be_meant_also_where_there_are_no_images(folder: Path, words: list[str], said: str) -> None:
    for config in (CONFIG, SimpleNamespace(vision=None)):
        with pytest.raises(ValueError, match=said):
            serving(folder, *words, config=config)


def test_why_there_are_none(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    assert serving(folder, config=SimpleNamespace(vision=None)) == NoImages()
    found = serving(folder, "--with_visual", "false")
    assert isinstance(found, NoImages)
    assert "--with_visual false" in found.reason
    assert not caplog.records
    (folder / "preprocessor_config.json").unlink()
    assert isinstance(serving(folder), NoImages)
    assert "preprocessor_config.json is missing" in caplog.text


def test_a_tokenizer_of_another_model(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_tokenizer(folder, byte_level_tokenizer(INTERNVL_SPECIAL[:4]))
    assert isinstance(serving(folder), NoImages)
    assert "image token" in caplog.text
