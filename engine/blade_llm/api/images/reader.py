"""The images of requests: fetched, decoded, resized, for all requests of an API-server process at once."""

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
from blade_llm.multimodal.settings import ImageSettings
from blade_llm.multimodal.workers import ImageWorkers
from blade_llm.spec.vision.images import ImagePixels
from blade_llm.text.tokenizer import Tokenizer

_HELD_BYTES: Final = 1 << 30
"""Files of all requests that were fetched and wait to be decoded; requests beyond are refused for now. As many may be
held by those that are still fetching."""
_TURNS: Final = 2
"""Requests that are decoded at a time, for each process that decodes: what they hold are up to
``max_pixels_per_request`` pixels each."""
_CODES: Final = {"unavailable": "failed_to_download_image", "timeout": "failed_to_download_image",
                 "too_large": "image_file_too_large"}  # fmt: skip
"""Of OpenAI, by the kinds of :class:`~blade_llm.multimodal.fetching.errors.MediaError`; others are about the URL."""


class ImagePart(NamedTuple):
    """An image of a conversation."""

    url: str
    settings: ImageSettings
    where: str
    """Its place in the request, for errors."""


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
        """Called with the number of a request's images, the bytes of their files, and the seconds that they took."""
        self._fetcher = Fetcher(
            FetchOptions(
                allowed_local_media_path=serving.allowed_local_media_path,
                allowed_media_domains=serving.allowed_media_domains,
                private_media_domains=serving.private_media_domains,
                max_bytes=options.max_image_bytes,
                max_request_bytes=serving.request_bytes,
                max_request_urls=options.max_images_per_request,
            )
        )
        self._media_error = MediaError
        self._workers = ImageWorkers(serving.processor, options)
        self._turns = asyncio.Semaphore(_TURNS * options.image_workers)
        self._held = 0

    async def read(self, parts: Sequence[ImagePart]) -> list[ImagePixels]:
        """Pixels of every image, in order; those of equal ones once. Raises :class:`BadImagesError` and
        :class:`BusyError`. Cancelling it ends all work at once."""
        started = time.monotonic()
        try:
            files = await self._fetcher.fetch_all([part.url for part in parts])
        except self._media_error as error:
            if error.kind == "busy":
                raise BusyError(str(error)) from None
            raise BadImagesError(str(error), _CODES.get(error.kind, "invalid_image_url"), error.index) from None
        size = sum({id(file): len(file) for file in files}.values())
        with self._holding(size):
            async with self._turns:
                try:
                    images = [ImageFile(file, part.settings) for file, part in zip(files, parts, strict=True)]
                    found = await process_images(self._workers, images)
                except ImagesBusyError as error:
                    raise BusyError(str(error)) from None
                except ImageError as error:
                    raise BadImagesError(error.problem, "invalid_image", error.index) from None
        self.observe(len(parts), size, time.monotonic() - started)
        return found

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


def open_reader(serving: ImageServing | NoImages, tokenizer: Tokenizer) -> ImageReader | NoImages:
    """What reads images as ``serving`` says; itself where it says that there are none."""
    return ImageReader(serving, tokenizer) if isinstance(serving, ImageServing) else serving
