"""Several images of one request, and requests beside each other."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator

import pytest
from engine_support import image_bombs
from engine_support.image_cases import encode, waves
from PIL import Image

from blade_llm.multimodal import request_images
from blade_llm.multimodal.errors import ImageError, ImagesBusyError
from blade_llm.multimodal.options import ImageOptions
from blade_llm.multimodal.processors import QwenProcessor
from blade_llm.multimodal.request_images import ImageFile, process_images
from blade_llm.multimodal.settings import ImageSettings
from blade_llm.multimodal.workers import ImageWorkers
from blade_llm.spec.vision.images import ImagePixels

OPTIONS = ImageOptions(
    image_timeout=60.0, image_workers=1, max_images_per_request=9, max_pixels_per_request=50_000, max_waiting_images=2
)


class CountingWorkers(ImageWorkers):
    """And knows the order of what it did."""

    def __init__(self, options: ImageOptions) -> None:
        super().__init__(QwenProcessor(), options)
        self.done: list[bytes] = []

    async def process(self, data: bytes, settings: ImageSettings | None = None) -> ImagePixels:
        pixels = await super().process(data, settings)
        self.done.append(data)
        return pixels


@pytest.fixture
async def workers() -> AsyncIterator[CountingWorkers]:
    workers = CountingWorkers(OPTIONS)
    yield workers
    await workers.close()


def _file(height: int, width: int = 84) -> bytes:
    return encode(Image.fromarray(waves(height, width, 3)), "PNG")


async def test_in_order_and_each_once(workers: CountingWorkers) -> None:
    small, large = _file(56), _file(140)
    tiny = ImageSettings(max_pixels=28 * 28)
    files = [ImageFile(large), ImageFile(small), ImageFile(bytes(bytearray(large))), ImageFile(large, tiny)]
    pixels = await process_images(workers, files)
    assert [image.grid for image in pixels] == [(1, 10, 6), (1, 4, 6), (1, 10, 6), (1, 2, 2)]
    assert pixels[0] is pixels[2]
    assert workers.done == [large, small, large]
    assert await process_images(workers, []) == []


async def test_files_that_differ_in_their_last_bytes_alone(
    workers: CountingWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told apart off the event loop; those whose length no other file has are not hashed at all."""
    hashed: list[tuple[bytes, bool]] = []

    def sha256(data: bytes) -> hashlib._Hash:
        hashed.append((data, threading.current_thread() is threading.main_thread()))
        return hashlib.sha256(data)

    monkeypatch.setattr(request_images, "sha256", sha256)
    picture, other = _file(56), _file(140)
    one, two = (picture + bytes([last]) for last in (1, 2))
    files = [two, other, one, bytes(bytearray(two)), bytes(bytearray(one))]
    pixels = await process_images(workers, [ImageFile(data) for data in files])
    assert hashed == [(data, False) for data in (two, one, two, one)]
    assert workers.done == [two, other, one]
    assert [image.grid for image in pixels] == [(1, 4, 6), (1, 10, 6), (1, 4, 6), (1, 4, 6), (1, 4, 6)]
    assert pixels[0] is pixels[3] is not pixels[2]
    assert pixels[2] is pixels[4]


async def test_a_bad_image_is_named_and_ends_the_others(workers: CountingWorkers) -> None:
    files = [ImageFile(data) for data in (_file(56), image_bombs.SVG, _file(84), _file(112))]
    with pytest.raises(ImageError, match=r"^image 2 of 4: the image is SVG") as caught:
        await process_images(workers, files)
    assert caught.value.index == 1
    assert caught.value.problem.startswith("the image is SVG")
    assert workers.load[1:] == (0, 0, 0)
    assert len(workers.done) <= 2
    with pytest.raises(ImageError, match=r"^the image is SVG") as caught:
        await process_images(workers, [ImageFile(image_bombs.SVG)])
    assert caught.value.index == 0


async def test_the_limits_of_a_request(workers: CountingWorkers) -> None:
    with pytest.raises(ImageError, match="10 images, and the limit is 9"):
        await process_images(workers, [ImageFile(_file(56))] * 10)
    assert workers.load.processes == 0
    with pytest.raises(ImageError, match="more than 50000 pixels altogether") as caught:
        await process_images(workers, [ImageFile(_file(height)) for height in range(196, 224, 4)])
    assert caught.value.index is None
    assert len(workers.done) < 7


async def test_a_busy_server(workers: CountingWorkers) -> None:
    slow = asyncio.create_task(workers.process(image_bombs.slow_png(4000)))
    waiting = [asyncio.create_task(workers.process(_file(56))) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(ImagesBusyError, match="2 other images wait"):
        await process_images(workers, [ImageFile(_file(56)), ImageFile(_file(84))])
    await asyncio.gather(slow, *waiting)


async def test_requests_take_turns(workers: CountingWorkers) -> None:
    """One of nine images does not fill the queue, nor does it hold up one with a single image."""
    nine = [_file(28 + 2 * index, 40) for index in range(9)]
    many = asyncio.create_task(process_images(workers, [ImageFile(data) for data in nine]))
    while not workers.done:  # noqa: ASYNC110
        await asyncio.sleep(0)
    single = _file(70)
    await process_images(workers, [ImageFile(single)])
    await many
    assert workers.done.index(single) <= 3
    assert [data for data in workers.done if data != single] == nine


async def test_a_request_that_is_cancelled_leaves_nothing(workers: CountingWorkers) -> None:
    task = asyncio.create_task(process_images(workers, [ImageFile(image_bombs.slow_png(3000)), ImageFile(_file(56))]))
    while workers.load.processes == 0:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert workers.load == (0, 0, 0, 0)
