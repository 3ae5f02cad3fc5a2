"""Videos: frames and files in, patches in time out, and what a stranger's may cost is bounded."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import struct
from collections.abc import AsyncIterator

import numpy as np
import pytest
from engine_support import image_bombs
from engine_support.image_cases import encode, waves
from engine_support.video_references import video_frames
from PIL import Image

from blade_llm.multimodal.animations import MAX_FRAMES, AnimatedFile
from blade_llm.multimodal.errors import ImageError
from blade_llm.multimodal.options import ImageOptions
from blade_llm.multimodal.processors import QwenProcessor
from blade_llm.multimodal.processors.video import QwenVideo
from blade_llm.multimodal.request_videos import VideoFile, assemble, process_videos
from blade_llm.multimodal.settings import ImageSettings, PixelBounds
from blade_llm.multimodal.worker import Frames
from blade_llm.multimodal.workers import ImageWorkers

QWEN3 = QwenVideo(32 * 32 * 6, 32 * 32 * 40, patch_size=16, timestamps=True)
OPTIONS = ImageOptions(
    image_timeout=60.0,
    video_timeout=60.0,
    image_workers=1,
    max_videos_per_request=2,
    max_video_frames=6,
    max_pixels_per_request=40_000,
)
SMALL = QwenVideo(28 * 28, 56 * 84)


def png(height: int, width: int, turn: int = 0) -> bytes:
    return encode(Image.fromarray((waves(height, width, 3).astype(int) + turn).astype(np.uint8)), "PNG")


def animated(kind: str, count: int, size: tuple[int, int] = (56, 84), duration: int = 100) -> bytes:
    first, *others = (Image.fromarray(frame) for frame in video_frames(count, *size))
    exact = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    return encode(first, kind, save_all=True, append_images=others, duration=duration, **exact)


def test_a_single_frame_of_qwen3_stays_for_a_patch() -> None:
    video = QWEN3
    assert video.size(1, 64, 96, video.own_bounds) == video.size(2, 64, 96, video.own_bounds)
    found = assemble(video, Frames((1, 64, 96, 3), waves(64, 96, 3).tobytes(), (0,), rate=1.0), 1.0, 1 << 20)
    assert [image.shape for image in found.images] == [(2, 64, 96, 3)]
    assert found.seconds == (0.0,)


def test_time_is_in_the_digest_where_it_is_in_the_positions() -> None:
    frames = Frames((4, 28, 28, 3), bytes(4 * 28 * 28 * 3), (0, 1, 2, 3), rate=2.0)
    plain, timed = QwenVideo(), QwenVideo(tokens_per_second=2.0)
    digests = {
        how.tokens_per_second is not None: [assemble(how, frames, fps, 1 << 20).images[0].digest for fps in (1.0, 2.0)]
        for how in (plain, timed)
    }
    assert len(set(digests[False])) == 1
    assert len(set(digests[True])) == 2
    assert assemble(timed, frames, 0.5, 1 << 20).interval == 2.0 * 2 / 0.5
    assert assemble(plain, frames, 0.5, 1 << 20).interval == 1.0


@pytest.mark.parametrize("how", [QwenVideo(), QWEN3])
def test_frames_that_fill_one_patch_are_not_copied(how: QwenVideo) -> None:
    """And those of a longer video once, with the last one again where it is missing."""
    pixels = np.arange(3 * 32 * 32 * 3, dtype=np.uint8).tobytes()
    size = len(pixels) // 3
    two, three = (Frames((count, 32, 32, 3), pixels[: count * size], (0, 1, 2)[:count], rate=2.0) for count in (2, 3))
    assert assemble(how, two, 2.0, 1 << 20).images[0].pixels is two.pixels
    found = assemble(how, three, 2.0, 1 << 20).images
    assert b"".join(image.pixels for image in found) == pixels + pixels[-size:]


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_animations(kind: str) -> None:
    file = AnimatedFile(animated(kind, 5, duration=200), 1 << 20, lambda height, width: None)
    assert (file.total, file.width, file.height) == (5, 84, 56)
    assert file.rate == pytest.approx(5.0)
    found = [np.asarray(image) for image in file.frames([0, 2, 4])]
    for image, index in zip(found, (0, 2, 4), strict=True):
        difference = np.abs(image.astype(int) - video_frames(5, 56, 84)[index]).mean()
        assert difference < (40 if kind == "GIF" else 0.1)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_times_are_summed_exactly(kind: str) -> None:
    """Three seconds have six frames, not the four of a little less."""
    file = AnimatedFile(animated(kind, 300, duration=10), 1 << 20, lambda height, width: None)
    assert file.rate == 100.0
    assert len(QwenVideo().sample(file.total, file.rate, None, 256)) == 6


def test_the_default_image_of_a_png_is_no_frame() -> None:
    """What it shows where animations are not known (W3C PNG, third edition, 4.4), of which its frames say nothing."""
    frames = [Image.fromarray(np.roll(waves(40, 56, 3), step, axis=1)) for step in range(3)]
    data = io.BytesIO()
    still = Image.new("RGB", (56, 40), "red")
    still.save(data, "PNG", save_all=True, default_image=True, append_images=frames, duration=200)
    file = AnimatedFile(data.getvalue(), 1 << 20, lambda height, width: None)
    assert (file.total, file.rate) == (3, pytest.approx(5.0))
    for found, frame in zip(file.frames([0, 2]), (frames[0], frames[2]), strict=True):
        assert np.array_equal(np.asarray(found), np.asarray(frame))


def test_a_still_picture_and_frames_without_a_duration() -> None:
    assert AnimatedFile(png(28, 28), 1 << 20, lambda height, width: None).total == 1
    assert AnimatedFile(animated("GIF", 3, duration=0), 1 << 20, lambda height, width: None).rate == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\0\0\0\x20ftypisom" + bytes(40), "MP4, or of its kind, which is not supported: send its frames"),
        (b"\0\0\0\x20ftypqt  " + bytes(40), "QuickTime"),
        (b"\x1a\x45\xdf\xa3" + bytes(40), "WebM or Matroska"),
        (b"RIFF" + bytes(4) + b"AVI " + bytes(40), "is AVI, which"),
        (encode(Image.fromarray(waves(28, 28, 3)), "JPEG"), "is JPEG, a picture"),
        (image_bombs.SVG, "the video is SVG, which is not supported: send its frames"),
        (b"\x47\x40" + bytes(186), "the video's 188 bytes are of no known format.*: send its frames"),
        (b"", "the video is empty"),
        (animated("PNG", 4)[:-2000], "truncated or broken"),
    ],
)
def test_files_that_are_no_videos(data: bytes, said: str) -> None:
    with pytest.raises(ImageError, match=said):
        list(AnimatedFile(data, 1 << 20, lambda height, width: None).frames([0]))
    with pytest.raises(ImageError, match="the limit is 4703"):
        AnimatedFile(animated("GIF", 2), 4703, lambda height, width: None)


def test_frames_of_a_file_are_bounded() -> None:
    frame = b"," + struct.pack("<4HB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\x00"
    head = b"GIF89a" + struct.pack("<2H3B", 1, 1, 0x80, 0, 0) + bytes(3) + b"\xff" * 3
    few, many = (head + frame * count + b";" for count in (7, MAX_FRAMES + 1))
    assert AnimatedFile(few, 1 << 20, lambda height, width: None).total == 7
    with pytest.raises(ImageError, match="the video has 10001 frames, and the limit is 10000"):
        AnimatedFile(many, 1 << 20, lambda height, width: None)


@pytest.fixture
async def workers() -> AsyncIterator[ImageWorkers]:
    workers = ImageWorkers(QwenProcessor(28 * 28, 56 * 84), OPTIONS, SMALL)
    yield workers
    await workers.close()


async def test_frames_and_animations_through_workers(workers: ImageWorkers) -> None:
    frames = (png(56, 84), png(56, 84, 9), png(56, 84, 30))
    fewer = ImageSettings(max_pixels=28 * 28)
    videos = [VideoFile(frames, False), VideoFile((animated("PNG", 8, duration=250),), True, 4.0, fewer)]
    one, two = await process_videos(workers, videos)
    assert one.images[0].shape == (4, 56, 84, 3)
    assert one.images[0].grid == (2, 4, 6)
    frame = 56 * 84 * 3
    given = np.asarray(Image.open(io.BytesIO(frames[2]))).tobytes()
    assert one.images[0].pixels[2 * frame : 3 * frame] == given == one.images[0].pixels[3 * frame :]
    assert two.images[0].shape == (6, 28, 28, 3)  # of 8, as 6 are allowed
    assert workers.load[1:] == (0, 0, 0)


@pytest.mark.parametrize(
    ("videos", "said"),
    [
        ([VideoFile((png(28, 28),), False)] * 3, "the request has 3 videos, and the limit is 2"),
        ([VideoFile((png(28, 28),) * 7, False)], "the video has 7 frames, and the limit is 6"),
        ([VideoFile((png(28, 28), png(28, 56)), False)], "frame 2 has 56 x 28 pixels after"),
        ([VideoFile((png(28, 28), image_bombs.SVG), False)], "^frame 2: the image is SVG"),
        ([VideoFile((png(28, 28),), False), VideoFile((b"x",), True)], "^video 2 of 2: "),
        ([VideoFile((png(56, 84), png(56, 84, 9)) * 3, False)] * 2, "video 2 of 2: its frames have more than 11776"),
        ([VideoFile((animated("PNG", 6),), True, 11.0)] * 2, "the limit is 11776: send fewer frames"),
    ],
)
async def test_the_limits_of_a_request(workers: ImageWorkers, videos: list[VideoFile], said: str) -> None:
    with pytest.raises(ImageError, match=said):
        await process_videos(workers, videos)


async def test_cpu_time_of_a_video_is_bounded() -> None:
    """That of an animation, whatever one image may take, and that of all frames together, each of which may take
    more."""
    large = (900, 1600)
    film = VideoFile((animated("PNG", 6, large),), True)
    frames = VideoFile(tuple(png(*large, turn) for turn in range(6)), False)
    for limits, video, said in (
        ({"image_timeout": 0.02}, film, None),
        ({"video_timeout": 0.02}, film, "takes more than 0.02 s of CPU time"),
        ({"video_timeout": 0.02}, frames, r"its frames take more than 0.02 s of CPU time to decode \(--video_timeout"),
    ):
        workers = ImageWorkers(QwenProcessor(), dataclasses.replace(OPTIONS, **limits), SMALL)
        with contextlib.nullcontext() if said is None else pytest.raises(ImageError, match=said):
            await process_videos(workers, [video])
        await workers.close()


async def test_bounds_of_a_request_are_within_those_of_the_model(workers: ImageWorkers) -> None:
    video = VideoFile((png(56, 84),), False, None, ImageSettings(max_pixels=57 * 84))
    with pytest.raises(ImageError, match="max_pixels must be between 1 and 4704"):
        await process_videos(workers, [video])
    assert SMALL.size(1, 560, 840, PixelBounds(1, 28 * 28)) == (28, 28)
