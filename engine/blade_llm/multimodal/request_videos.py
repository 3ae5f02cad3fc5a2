"""The videos of one request: their files in, what a vision tower takes out."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from blade_llm.multimodal.content import content_digest
from blade_llm.multimodal.errors import ImageError
from blade_llm.multimodal.processors.video import QwenVideo
from blade_llm.multimodal.settings import ImageSettings, PixelBounds
from blade_llm.multimodal.worker import Frames
from blade_llm.multimodal.worker_messages import Animation, OneFrame
from blade_llm.multimodal.workers import ImageWorkers
from blade_llm.spec.vision.images import ImagePixels

DEFAULT_FPS: Final = 2.0
"""Frames of a second that were sent as files, where a request does not say it."""


class VideoFile(msgspec.Struct, frozen=True, gc=False):
    """A video as it came, and what the request says about it."""

    files: tuple[bytes, ...]
    animated: bool
    """It is one file with all frames; else each file is a frame."""
    fps: float | None = None
    """Of frames how many are a second; of a file with all of them how many of a second to take."""
    settings: ImageSettings = ImageSettings()


class VideoPixels(NamedTuple):
    """A video as a vision tower takes it."""

    images: tuple[ImagePixels, ...]
    """One; where the prompt says the times, one for each patch in time."""
    interval: float
    """As :attr:`~blade_llm.spec.vision.images.ImageSpan.interval`."""
    seconds: tuple[float, ...] = ()
    """When each of ``images`` is, where the prompt says it."""

    @property
    def num_pixels(self) -> int:
        """Of all frames."""
        return sum(len(image.pixels) for image in self.images) // 3


async def process_videos(workers: ImageWorkers, videos: Sequence[VideoFile], pixels: int = 0) -> list[VideoPixels]:
    """Pixels of every video, in order, one video after the other, whose frames wait for their turns as the images of
    :func:`~blade_llm.multimodal.request_images.process_images` do.

    ``pixels``: those that the request's images have already. Raises :class:`ImageError`, which says which video is
    meant, and :class:`ImagesBusyError`.
    """
    options = workers.options
    if len(videos) > options.max_videos_per_request:
        raise ImageError(f"the request has {len(videos)} videos, and the limit is {options.max_videos_per_request}")
    found: list[VideoPixels] = []
    for index, video in enumerate(videos):
        try:
            found.append(await _process(workers, video, options.max_pixels_per_request - pixels))
        except ImageError as error:
            raise ImageError(error.problem, index, len(videos), "video") from None
        pixels += found[-1].num_pixels
    return found


async def _process(workers: ImageWorkers, video: VideoFile, room: int) -> VideoPixels:
    """``room``: pixels that the request may still have."""
    how, most = workers.video, workers.options.max_video_frames
    if how is None:
        raise ImageError("videos are not supported by this model")
    # ``max_image_pixels`` and ``min_image_pixels`` are about images alone
    options = dataclasses.replace(workers.options, max_image_pixels=None, min_image_pixels=None)
    bounds = video.settings.bounds(how.own_bounds, options)
    if video.animated:
        animation = Animation(video.fps, most, max(0, room))
        frames = await workers.process_video(video.files[0], bounds, animation)
        sampled = len(frames.indices) / frames.total * frames.rate
    else:
        if len(video.files) > most:
            raise ImageError(f"the video has {len(video.files)} frames, and the limit is {most}: send fewer")
        sampled = video.fps or DEFAULT_FPS
        frames = await _frames(workers, video.files, bounds, room)
        frames = frames._replace(indices=tuple(range(frames.shape[0])), rate=sampled)
    return await asyncio.to_thread(assemble, how, frames, sampled, room)


async def _frames(workers: ImageWorkers, files: Sequence[bytes], bounds: PixelBounds, room: int) -> Frames:
    """Of files of one frame each; one that stands several times is processed once."""
    results: dict[int, Frames] = {}
    limit = workers.options.video_timeout
    pixels, seconds = 0, 0.0

    async def process(index: int) -> None:
        nonlocal pixels, seconds
        try:
            found = await workers.process_video(files[index], bounds, OneFrame(len(files)))
        except ImageError as error:
            raise ImageError(f"frame {index + 1}: {error.problem}") from None
        pixels += len(found.pixels) // 3
        check_room(pixels, room)
        seconds += found.seconds
        if seconds > limit:
            raise ImageError(
                f"its frames take more than {limit:g} s of CPU time to decode (--video_timeout): send fewer, or "
                "smaller ones"
            )
        results[id(files[index])] = found

    await workers.for_each(sorted({id(file): index for index, file in enumerate(files)}.values()), process)
    frames = [results[id(file)] for file in files]
    for index, frame in enumerate(frames):
        if frame.shape != frames[0].shape:
            raise ImageError(
                f"frame {index + 1} has {_size(frame)} pixels after it was resized, and frame 1 has "
                f"{_size(frames[0])}: send frames of one size"
            )
    check_room(len(frames) * len(frames[0].pixels) // 3, room)
    joined = await asyncio.to_thread(b"".join, [frame.pixels for frame in frames])
    return Frames((len(frames), *frames[0].shape[1:]), joined)


def check_room(pixels: int, room: int) -> None:
    """Raises :class:`ImageError`."""
    if pixels > room:
        raise ImageError(
            f"its frames have more than {max(0, room)} pixels, those that are left for it in this request, after they "
            "were resized: send fewer, or less max_pixels"
        )


def assemble(how: QwenVideo, frames: Frames, sampled: float, room: int) -> VideoPixels:
    """The frames as patches in time, the last one repeated where they do not fill one.

    ``sampled``: so many of them are a second. ``room``: as many pixels may they have. Raises :class:`ImageError`. Takes
    a while: for a thread.
    """
    count, height, width, channels = frames.shape
    patch = how.temporal_patch_size
    missing = -count % patch
    check_room((count + missing) * height * width, room)
    size = height * width * channels
    last = frames.pixels[(count - 1) * size :]
    rows, columns = height // how.patch_size, width // how.patch_size
    if not how.timestamps:
        pixels = _joined(frames.pixels, [last] * missing)
        interval = how.interval(sampled)
        grid, shape = ((count + missing) // patch, rows, columns), (count + missing, height, width, channels)
        digest = content_digest(grid, shape, pixels, interval)
        return VideoPixels((ImagePixels(digest, grid, shape, pixels),), interval)
    images = []
    for start in range(0, count, patch):
        end = min(count, start + patch)
        pixels = _joined(frames.pixels[start * size : end * size], [last] * (start + patch - end))
        grid, shape = (1, rows, columns), (patch, height, width, channels)
        images.append(ImagePixels(content_digest(grid, shape, pixels), grid, shape, pixels))
    return VideoPixels(tuple(images), 1.0, tuple(how.seconds(frames.indices, frames.rate)))


def _joined(pixels: bytes, others: list[bytes]) -> bytes:
    """All of them. They are bytes alone: with a memoryview among them ``join`` holds the interpreter's lock, and the
    event loop stands still for half a second."""
    return b"".join([pixels, *others]) if others else pixels


def _size(frame: Frames) -> str:
    return f"{frame.shape[2]} x {frame.shape[1]}"
