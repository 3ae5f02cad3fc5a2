"""All images of one request: in order, each file once, and no request before the others' turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256

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
    """Pixels of every file, in order; equal files share them. Raises :class:`ImageError`, which says which image is
    meant, and :class:`ImagesBusyError`."""
    options = workers.options
    if len(files) > options.max_images_per_request:
        raise ImageError(f"the request has {len(files)} images, and the limit is {options.max_images_per_request}")
    first = await _first_equal(files)
    results: dict[int, ImagePixels] = {}

    async def process(index: int) -> None:
        try:
            results[index] = await workers.process(files[index].data, files[index].settings)
        except ImageError as error:
            raise ImageError(error.problem, index, len(files)) from None
        pixels = sum(len(result.pixels) for result in results.values()) // 3
        if pixels > options.max_pixels_per_request:
            raise ImageError(
                f"the request's images have more than {options.max_pixels_per_request} pixels altogether, after they "
                "were resized: send fewer, or less max_pixels or detail"
            )

    await workers.for_each(sorted(set(first)), process)
    return [results[index] for index in first]


async def _first_equal(files: Sequence[ImageFile]) -> list[int]:
    """Of each file, the index of the first one that is the same. Only files that another one equals in length and
    settings are hashed, in a thread: sums over megabytes would hold up the event loop."""
    kinds = [(len(file.data), file.settings) for file in files]
    counts = Counter(kinds)
    alike = [index for index, kind in enumerate(kinds) if counts[kind] > 1]
    digests = await asyncio.to_thread(_digests, [files[index].data for index in alike]) if alike else []
    digest = dict(zip(alike, digests, strict=True))
    first: dict[tuple[int, ImageSettings, bytes | None], int] = {}
    return [first.setdefault((*kind, digest.get(index)), index) for index, kind in enumerate(kinds)]


def _digests(contents: Sequence[bytes]) -> list[bytes]:
    return [sha256(content).digest() for content in contents]
