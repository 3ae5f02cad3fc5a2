"""Image tokens in prompts: one becomes many, and texts have none."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from engine_support.served_vision import INTERNVL_SPECIAL, QWEN_SPECIAL
from engine_support.tiny_text import byte_level_tokenizer, write_tokenizer
from examples.families import tokenizers as of_examples

from blade_llm.api.images.serving import ImageServing
from blade_llm.api.images.tokens import ImageTokens
from blade_llm.multimodal.processors import QwenProcessor, TiledProcessor
from blade_llm.multimodal.processors.video import QwenVideo
from blade_llm.multimodal.request_videos import VideoPixels
from blade_llm.spec.vision.images import ImagePixels, ImageSpan
from blade_llm.text.tokenizer import Tokenizer

QWEN = ImageServing(processor=QwenProcessor(), image_token=5, video_token=6)
TILED = ImageServing(processor=TiledProcessor(16, 16, 4, 4), image_token=5)


def pixels(name: str, tiles: int) -> ImagePixels:
    return ImagePixels(name.encode() * 32, (tiles, 4, 4), (tiles, 16, 16, 3), b"")


def tokenizer(folder: Path, *special: str) -> Tokenizer:
    return Tokenizer(write_tokenizer(folder, of_examples.byte_level_tokenizer(special)))


def test_one_token_becomes_as_many_as_there_are_embeddings(tmp_path: Path) -> None:
    tokens = ImageTokens.of(TILED, tokenizer(tmp_path, *INTERNVL_SPECIAL))
    assert (tokens.image, tokens.before, tokens.after) == (5, (3,), (4,))
    ids = [9, 5, 10, 11, 5, 5]
    assert tokens.count_in(ids) == 3
    images = [pixels("a", 1), pixels("b", 3), pixels("a", 1)]
    expanded, spans = tokens.expand(ids, images, TILED.processor.count)
    assert expanded == [9, 3, *[5] * 4, 4, 10, 11, 3, *[5] * 12, 4, 3, *[5] * 4, 4]
    assert [(span.start, span.count) for span in spans] == [(2, 4), (10, 12), (24, 4)]
    assert spans[0] == ImageSpan(2, 4, b"a" * 32, (1, 4, 4))
    assert all(expanded[span.start : span.end] == [5] * span.count for span in spans)
    assert tokens.expand([1, 2], [], TILED.processor.count) == ([1, 2], [])


def test_what_a_template_writes_around_an_image_stays(tmp_path: Path) -> None:
    tokens = ImageTokens.of(QWEN, tokenizer(tmp_path, *QWEN_SPECIAL))
    assert (tokens.before, tokens.after) == ((), ())
    image = ImagePixels(bytes(32), (1, 4, 6), (1, 56, 84, 3), b"")
    expanded, (span,) = tokens.expand([3, 5, 4], [image], QWEN.processor.count)
    assert expanded == [3, *[5] * 6, 4]
    assert (span.start, span.count) == (1, 6)


def film(frames: int, interval: float = 1.0, seconds: tuple[float, ...] = ()) -> VideoPixels:
    grids = [(1, 4, 6)] * len(seconds) or [(frames, 4, 6)]
    images = [ImagePixels(bytes([at]) * 32, grid, (2 * grid[0], 56, 84, 3), b"") for at, grid in enumerate(grids)]
    return VideoPixels(tuple(images), interval, seconds)


def test_a_video_beside_images(tmp_path: Path) -> None:
    serving = msgspec.structs.replace(QWEN, video=QwenVideo())
    tokens = ImageTokens.of(serving, tokenizer(tmp_path, *QWEN_SPECIAL))
    ids = [9, 6, 10, 5, 11, 6]
    assert (tokens.count_in(ids), tokens.videos_in(ids)) == (1, 2)
    picture = ImagePixels(bytes(32), (1, 4, 6), (1, 56, 84, 3), b"")
    expanded, spans = tokens.expand(ids, [picture], QWEN.processor.count, [film(2, 4.0), film(1)])
    assert expanded == [9, *[6] * 12, 10, *[5] * 6, 11, *[6] * 6]
    assert [(span.start, span.count, span.grid, span.interval) for span in spans] == [
        (1, 12, (2, 4, 6), 4.0),
        (14, 6, (1, 4, 6), 1.0),
        (21, 6, (1, 4, 6), 1.0),
    ]


def test_a_video_with_its_times(tmp_path: Path) -> None:
    """As transformers writes them, within what the template has around a video."""
    serving = msgspec.structs.replace(QWEN, video=QwenVideo(timestamps=True))
    found = tokenizer(tmp_path, *QWEN_SPECIAL)
    tokens = ImageTokens.of(serving, found)
    expanded, spans = tokens.expand([3, 6, 4], [], QWEN.processor.count, [film(2, seconds=(0.25, 1.04))])
    begin, pad, end = "<|vision_start|>", "<|video_pad|>", "<|vision_end|>"
    text = f"{begin}<0.2 seconds>{begin}{pad * 6}{end}<1.0 seconds>{begin}{pad * 6}{end}{end}"
    assert expanded == found.encode(text, add_special_tokens=False)
    assert [span.grid for span in spans] == [(1, 4, 6)] * 2
    assert all(expanded[span.start : span.start + span.count] == [6] * 6 for span in spans)
    assert expanded.count(6) == 12


def test_texts_that_stand_for_images(tmp_path: Path) -> None:
    tokens = ImageTokens.of(QWEN, tokenizer(tmp_path, *QWEN_SPECIAL))
    assert tokens.reserved == ("<|image_pad|>", "<|video_pad|>")
    deep = {"a": [1, None, {"b": ("x", [["y <|video_pad|>"]])}]}
    assert tokens.found_in(["hello", deep]) == "<|video_pad|>"
    assert tokens.found_in([{"<|image_pad|>": 1}]) == "<|image_pad|>"
    assert tokens.found_in(["<|image", "_pad|>", {"a": "<|image", "b": "_pad|>"}, "<|im_start|>"]) is None
    nested: object = "<|image_pad|>"
    for _ in range(5_000):  # as deep as JSON may be, and deeper
        nested = [nested]
    assert tokens.found_in([nested]) == "<|image_pad|>"


def test_a_tokenizer_without_the_tokens(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the image token, is no added token"):
        ImageTokens.of(QWEN, Tokenizer(write_tokenizer(tmp_path / "plain", byte_level_tokenizer())))
    no_video = ImageServing(processor=QwenProcessor(), image_token=5, video_token=9, video=QwenVideo())
    with pytest.raises(ValueError, match="token 9, the video token, is no added token"):
        ImageTokens.of(no_video, tokenizer(tmp_path / "short", *QWEN_SPECIAL))
    with pytest.raises(ValueError, match="no token '<img>'"):
        ImageTokens.of(TILED, tokenizer(tmp_path / "qwen", *QWEN_SPECIAL))
