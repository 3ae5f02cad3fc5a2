"""All images of one request: in order, each file once, and no request before the others' turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from blade_llm.multimodal.errors import ImageError
from blade_llm.multimodal.settings import ImageSettings
from blade_llm.multimodal.workers import ImageWorkers
from blade_llm.spec.vision.images import ImagePixels


class ImageFile(msgspec.Struct, frozen=True, gc=False):
    """A file as it came, and what the request says about it."""

    data: bytes
    settings: ImageSettings = ImageSettings()


async def process_images(workers: ImageWorkers, files: Sequence[ImageFile]) -> list[ImagePixels]:
    """Pixels of every file, in order; equal files share them.

    A request has no more images in the queue at a time than there are processes, so that one with many delays the
    others by one turn each. The first error ends the others' work. Raises :class:`ImageError`, which says which image
    is meant, and :class:`ImagesBusyError`.
    """
    options = workers.options
    if len(files) > options.max_images_per_request:
        raise ImageError(f"the request has {len(files)} images, and the limit is {options.max_images_per_request}")
    first = _first_equal(files)
    turns = asyncio.Semaphore(options.image_workers)
    results: dict[int, ImagePixels] = {}

    async def process(index: int) -> None:
        async with turns:
            try:
                results[index] = await workers.process(files[index].data, files[index].settings)
            except ImageError as error:
                raise ImageError(
                    f"image {index + 1} of {len(files)}: {error}" if len(files) > 1 else str(error)
                ) from None
        pixels = sum(len(result.pixels) for result in results.values()) // 3
        if pixels > options.max_pixels_per_request:
            raise ImageError(
                f"the request's images have more than {options.max_pixels_per_request} pixels altogether, after they "
                "were resized: send fewer, or less max_pixels or detail"
            )

    try:
        async with asyncio.TaskGroup() as group:
            for index in sorted(set(first)):
                group.create_task(process(index))
    except* Exception as errors:
        failure = min(errors.exceptions, key=lambda error: not isinstance(error, ImageError))
    else:
        return [results[index] for index in first]
    raise failure


def _first_equal(files: Sequence[ImageFile]) -> list[int]:
    """Of each file, the index of the first one that is the same. Compared, not hashed, which would take milliseconds of
    the event loop: files that differ do so in their first bytes."""
    first: list[int] = []
    for index, file in enumerate(files):
        equal = (other for other in sorted(set(first)) if files[other] == file)
        first.append(next(equal, index))
    return first
