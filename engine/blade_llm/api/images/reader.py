"""The images and videos of requests: fetched, decoded, resized, for all requests of an API-server process at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from blade_llm.api.images.errors import BadImagesError, BusyError
from blade_llm.api.images.serving import ImageServing, NoImages
from blade_llm.api.images.tokens import ImageTokens
from blade_llm.multimodal.errors import ImageError, ImagesBusyError
from blade_llm.multimodal.request_images import ImageFile, process_images
from blade_llm.multimodal.request_videos import VideoFile, VideoPixels, process_videos
from blade_llm.multimodal.settings import ImageSettings
from blade_llm.multimodal.workers import ImageWorkers
from blade_llm.spec.vision.images import ImagePixels
from blade_llm.text.tokenizer import Tokenizer

_HELD_BYTES: Final = 1 << 30
"""Files of all requests that were fetched and wait to be decoded; requests beyond are refused for now. As many may be
held by those that are still fetching."""
_TURNS: Final = 2
"""Requests that are decoded at a time, for each process that decodes: what they hold are up to
``max_pixels_per_request`` pixels each, and twice those of a video while its frames are put together."""
_CODES: Final = {"unavailable": "failed_to_download_image", "timeout": "failed_to_download_image",
                 "too_large": "image_file_too_large"}  # fmt: skip
"""Of OpenAI, by the kinds of :class:`~blade_llm.multimodal.fetching.errors.MediaError`; others are about the URL."""


class ImagePart(NamedTuple):
    """An image of a conversation."""

    url: str
    settings: ImageSettings
    where: str
    """Its place in the request, for errors."""

    @property
    def urls(self) -> tuple[str, ...]:
        return (self.url,)


class VideoPart(NamedTuple):
    """A video of a conversation."""

    urls: tuple[str, ...]
    """Of each frame, or of one file with all of them."""
    animated: bool
    """It is such a file."""
    fps: float | None
    settings: ImageSettings
    where: str


class ImageReader:
    """Use within one running event loop. Making one imports the HTTP client, which takes 0.8 s; no process is started
    before the first image.

    Raises ``ValueError`` for options that contradict each other, and where the tokenizer has no image token.
    """

    def __init__(self, serving: ImageServing, tokenizer: Tokenizer) -> None:
        from blade_llm.multimodal.fetching import Fetcher, FetchOptions, MediaError

        options = serving.options
        self.tokens = ImageTokens.of(serving, tokenizer)
        self.most = options.max_images_per_request
        self.processor = serving.processor
        self.observe: Callable[[int, int, float], None] = lambda images, size, seconds: None
        """Called with the number of a request's files of images and videos, their bytes, and the seconds they took."""
        self._fetcher = Fetcher(
            FetchOptions(
                allowed_local_media_path=serving.allowed_local_media_path,
                allowed_media_domains=serving.allowed_media_domains,
                private_media_domains=serving.private_media_domains,
                max_bytes=options.max_image_bytes,
                max_request_bytes=serving.request_bytes,
                max_request_urls=serving.max_urls,
            )
        )
        self._media_error = MediaError
        self.video = serving.video
        self.most_videos = options.max_videos_per_request
        self.most_frames = options.max_video_frames
        self._workers = ImageWorkers(serving.processor, options, serving.video)
        self._turns = asyncio.Semaphore(_TURNS * options.image_workers)
        self._held = 0

    async def read(self, parts: Sequence[ImagePart | VideoPart]) -> list[ImagePixels | VideoPixels]:
        """Pixels of every image and video, in order; those of equal images once. Raises :class:`BadImagesError` and
        :class:`BusyError`. Cancelling it ends all work at once."""
        started = time.monotonic()
        places = [(index, frame) for index, part in enumerate(parts) for frame in range(len(part.urls))]
        try:
            files = await self._fetcher.fetch_all([url for part in parts for url in part.urls])
        except self._media_error as error:
            if error.kind == "busy":
                raise BusyError(str(error)) from None
            index, frame = (None, 0) if error.index is None else places[error.index]
            named = index is not None and len(parts[index].urls) > 1
            message = f"frame {frame + 1}: {error}" if named else str(error)
            raise BadImagesError(message, _CODES.get(error.kind, "invalid_image_url"), index) from None
        size = sum({id(file): len(file) for file in files}.values())
        with self._holding(size):
            async with self._turns:
                try:
                    found = await self._process(parts, files)
                except ImagesBusyError as error:
                    raise BusyError(str(error)) from None
                except ImageError as error:
                    raise BadImagesError(error.problem, "invalid_image", error.index) from None
        self.observe(len(files), size, time.monotonic() - started)
        return found

    async def _process(
        self, parts: Sequence[ImagePart | VideoPart], files: Sequence[bytes]
    ) -> list[ImagePixels | VideoPixels]:
        images: dict[int, ImageFile] = {}
        videos: dict[int, VideoFile] = {}
        start = 0
        for index, part in enumerate(parts):
            own = tuple(files[start : start + len(part.urls)])
            start += len(own)
            if isinstance(part, VideoPart):
                videos[index] = VideoFile(own, part.animated, part.fps, part.settings)
            else:
                images[index] = ImageFile(own[0], part.settings)
        with _placed([*images]):
            of_images = await process_images(self._workers, [*images.values()])
        pixels = sum(len(image.pixels) for image in {image.digest: image for image in of_images}.values()) // 3
        with _placed([*videos]):
            of_videos = await process_videos(self._workers, [*videos.values()], pixels)
        found: dict[int, ImagePixels | VideoPixels] = dict(zip(images, of_images, strict=True))
        found.update(zip(videos, of_videos, strict=True))
        return [found[index] for index in range(len(parts))]

    async def close(self) -> None:
        """End processes and threads."""
        await self._workers.close()
        await self._fetcher.aclose()

    @contextmanager
    def _holding(self, size: int) -> Iterator[None]:
        if self._held + size > _HELD_BYTES:
            raise BusyError("the images of other requests wait to be decoded; try again later")
        self._held += size
        try:
            yield
        finally:
            self._held -= size


@contextmanager
def _placed(places: Sequence[int]) -> Iterator[None]:
    """What is wrong with one of the images or videos at ``places`` is said of its place among all."""
    try:
        yield
    except ImageError as error:
        raise ImageError(error.problem, None if error.index is None else places[error.index], len(places)) from None


def open_reader(serving: ImageServing | NoImages, tokenizer: Tokenizer) -> ImageReader | NoImages:
    """What reads images as ``serving`` says; itself where it says that there are none."""
    return ImageReader(serving, tokenizer) if isinstance(serving, ImageServing) else serving
