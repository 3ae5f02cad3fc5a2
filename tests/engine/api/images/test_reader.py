"""Images of requests in an API-server process: read once for each request, given up when its client leaves."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from engine_support import image_bombs
from engine_support.image_cases import encode, waves
from engine_support.served_vision import QWEN_SPECIAL
from engine_support.tiny_text import write_tokenizer
from examples.families.tokenizers import byte_level_tokenizer
from PIL import Image
from starlette.types import Message

from blade_llm.api.common.errors import ApiError
from blade_llm.api.generation.request_scope import forget_parts, kept_parts, request_scope
from blade_llm.api.images.errors import BadImagesError, BusyError
from blade_llm.api.images.reader import ImagePart, ImageReader, VideoPart, open_reader
from blade_llm.api.images.serving import ImageServing, NoImages
from blade_llm.api.prompt_images import PromptTokens, with_images
from blade_llm.multimodal.options import ImageOptions
from blade_llm.multimodal.processors import QwenProcessor
from blade_llm.multimodal.processors.video import QwenVideo
from blade_llm.multimodal.settings import ImageSettings
from blade_llm.text.tokenizer import Tokenizer

PICTURE = encode(Image.fromarray(waves(56, 84, 3)), "PNG")
ONE = [3, 5, 4]
SERVING = ImageServing(
    processor=QwenProcessor(),
    image_token=5,
    options=ImageOptions(image_workers=1, image_timeout=60.0, max_images_per_request=4),
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    return Tokenizer(write_tokenizer(folder, byte_level_tokenizer(QWEN_SPECIAL)))


@pytest.fixture
async def reader(tokenizer: Tokenizer) -> AsyncIterator[ImageReader]:
    found = open_reader(SERVING, tokenizer)
    assert isinstance(found, ImageReader)
    yield found
    await found.close()


def part(data: bytes = PICTURE, **settings: Any) -> ImagePart:
    return placed("messages[0]", data, **settings)


def placed(where: str, data: bytes = PICTURE, **settings: Any) -> ImagePart:
    return ImagePart(f"data:;base64,{base64.b64encode(data).decode()}", ImageSettings(**settings), where)


class Connection:
    """Its client leaves when it is told to."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}


class Recorded:
    """Records what is read, and how often that was given up."""

    def __init__(self, reader: ImageReader, *, endless: bool = False) -> None:
        self.tokens, self.processor, self.most = reader.tokens, reader.processor, reader.most
        self._reader, self._endless = reader, endless
        self.read_parts: list[int] = []
        self.cancelled = 0
        self.begun = asyncio.Event()

    async def read(self, parts: list[ImagePart]) -> Any:
        self.read_parts.append(len(parts))
        self.begun.set()
        try:
            if self._endless:
                await asyncio.Event().wait()
            return await self._reader.read(parts)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


def context(images: Any) -> Any:
    return SimpleNamespace(images=images)


async def test_from_urls_to_pixels_and_tokens(reader: ImageReader) -> None:
    seen: list[tuple[int, int]] = []
    reader.observe = lambda images, size, seconds: seen.append((images, size))
    small = part(max_pixels=28 * 28)
    found = await with_images(context(reader), [9, *ONE, *ONE, *ONE], [part(), small, part()])
    assert [span.count for span in found.images] == [6, 1, 6]
    assert found.images[0].digest == found.images[2].digest
    assert [image.grid for image in found.pixels] == [(1, 4, 6), (1, 2, 2)]
    assert len(found.token_ids) == 1 + 6 + 13
    assert seen == [(3, 3 * len(PICTURE))]
    assert (await with_images(context(reader), [1, 2], [])) == PromptTokens([1, 2])
    assert (await with_images(context(NoImages()), [1, 5], [])) == PromptTokens([1, 5])


async def test_videos_beside_images(tokenizer: Tokenizer) -> None:
    """Frames and a file with all of them; both read once for a request."""
    video = QwenVideo(28 * 28, 56 * 84, tokens_per_second=2.0)
    found = open_reader(msgspec.structs.replace(SERVING, video_token=6, video=video), tokenizer)
    assert isinstance(found, ImageReader)
    other = encode(Image.fromarray(255 - waves(56, 84, 3)), "PNG")
    film = encode(Image.fromarray(waves(56, 84, 3)), "GIF", save_all=True, append_images=[Image.open(BytesIO(other))])
    frames = VideoPart((part().url, part(other).url, part().url), False, 4.0, ImageSettings(), "messages[0].content[0]")
    file = VideoPart((part(film).url,), True, None, ImageSettings(), "messages[0].content[2]")
    recorded, parts = Recorded(found), [frames, part(), file]
    with request_scope(Connection().receive):
        made = await with_images(context(recorded), [3, 6, 4, 3, 5, 4, 3, 6, 4], parts)
        assert made == await with_images(context(recorded), [3, 6, 4, 3, 5, 4, 3, 6, 4], parts)
    assert recorded.read_parts == [3]
    assert [(span.grid, span.count) for span in made.images] == [((2, 4, 6), 12), ((1, 4, 6), 6), ((1, 4, 6), 6)]
    assert [span.interval for span in made.images] == [1.0, 1.0, 0.4]
    assert made.token_ids == [3, *[6] * 12, 4, 3, *[5] * 6, 4, 3, *[6] * 6, 4]
    assert {image.digest for image in made.pixels} == {span.digest for span in made.images}
    with pytest.raises(ApiError, match=r"^messages\[0\]\.content\[2\]: the video's frames are so far apart"):
        await with_images(context(found), [5, 6, 6], [part(), frames, frames._replace(fps=0.01, where=file.where)])
    with pytest.raises(ApiError, match="shows 0 of 1 videos"):
        await with_images(context(found), [5], [frames, part()])
    with pytest.raises(ApiError, match="stands for a video"):
        await with_images(context(found), [6, 6], [frames])
    broken = frames._replace(urls=(part().url, part(image_bombs.SVG).url))
    with pytest.raises(ApiError, match=r"^messages\[0\]\.content\[0\]: frame 2: the image is SVG"):
        await with_images(context(found), [5, 6], [part(), broken])
    refused = frames._replace(urls=(part().url, "http://10.0.0.1/cat.png"), where="messages[7].content[1]")
    with pytest.raises(ApiError, match=r"^messages\[7\]\.content\[1\]: frame 2: http://10\.0\.0\.1"):
        await with_images(context(found), [5, 6], [part(), refused])
    await found.close()


async def test_errors_name_the_place(reader: ImageReader) -> None:
    refused = ImagePart("http://10.0.0.1/cat.png", ImageSettings(), "messages[7].content[1]")
    with pytest.raises(ApiError, match=r"^messages\[7\]\.content\[1\]: http://10\.0\.0\.1") as caught:
        await with_images(context(reader), [*ONE, *ONE], [part(), refused])
    detail = caught.value.detail
    assert (caught.value.status, detail.param, detail.code) == (400, "messages", "invalid_image_url")
    broken = placed("messages[2].content[0]", image_bombs.SVG)
    for parts in ([broken], [part(), broken], [part(), part(), broken], [part(max_pixels=28 * 28), broken, part()]):
        with pytest.raises(ApiError, match=r"^messages\[2\]\.content\[0\]: the image is SVG") as caught:
            await with_images(context(reader), ONE * len(parts), parts)
        assert caught.value.detail.code == "invalid_image"
    with pytest.raises(BadImagesError) as bad:
        await reader.read([part(b"x" * (21 << 20))])
    assert bad.value.code == "image_file_too_large"


async def test_places_and_images_are_as_many(reader: ImageReader) -> None:
    recorded = Recorded(reader)
    for token_ids, parts, said in (
        ([*ONE, *ONE], [part()], "<|image_pad|>"),
        ([5], [], "<|image_pad|>"),
        ([*ONE], [part(), part()], "shows 1 of 2 images"),
    ):
        with pytest.raises(ApiError, match=said.replace("|", r"\|")) as caught:
            await with_images(context(recorded), token_ids, parts)
        assert caught.value.status == 400
    assert recorded.read_parts == []


async def test_what_does_not_fit_is_said_before_it_is_fetched_and_after(reader: ImageReader) -> None:
    recorded = Recorded(reader)
    with pytest.raises(ApiError, match="100 tokens before those of their images") as caught:
        await with_images(context(recorded), [*[9] * 97, *ONE], [part()], limit=100)
    assert caught.value.detail.code == "context_length_exceeded"
    assert recorded.read_parts == []
    with pytest.raises(ApiError, match="13 tokens, 6 of them for 1 images") as caught:
        await with_images(context(recorded), [*[9] * 5, *ONE], [part()], limit=13)
    assert caught.value.detail.code == "context_length_exceeded"
    assert len((await with_images(context(recorded), [*[9] * 5, *ONE], [part()], limit=14)).token_ids) == 13


async def test_a_request_reads_an_image_once_however_often_its_prompt_is_made(reader: ImageReader) -> None:
    recorded = Recorded(reader)
    parts = [part(), part(max_pixels=28 * 28)]
    with request_scope(Connection().receive):
        first = await with_images(context(recorded), [*ONE, *ONE], parts)
        again = await with_images(context(recorded), [*ONE, *ONE], parts)
        more = await with_images(context(recorded), [*ONE, *ONE, *ONE], [*parts, part()])
        assert first == again
        assert more.images[:2] == first.images
        assert recorded.read_parts == [2, 1]
        forget_parts()
        assert kept_parts() == {}
        await with_images(context(recorded), [*ONE], parts[:1])
    with request_scope(Connection().receive):
        await with_images(context(recorded), [*ONE], parts[:1])
        broken = placed("messages[3].content[1]", image_bombs.SVG)
        with pytest.raises(ApiError, match=r"^messages\[3\]\.content\[1\]: the image is SVG"):
            await with_images(context(recorded), [*ONE, *ONE, *ONE], [parts[0], part(), broken])
    assert recorded.read_parts == [2, 1, 1, 1, 2]


async def test_a_client_that_leaves_ends_the_work(reader: ImageReader) -> None:
    recorded, connection = Recorded(reader, endless=True), Connection()
    with request_scope(connection.receive):
        waiting = asyncio.ensure_future(with_images(context(recorded), [*ONE], [part()]))
        await recorded.begun.wait()
        connection.left.set()
        with pytest.raises(ApiError) as caught:
            await waiting
    assert caught.value.status == 499
    assert recorded.cancelled == 1
    with request_scope(Connection().receive):
        waiting = asyncio.ensure_future(with_images(context(recorded), [*ONE], [part()]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert recorded.cancelled == 2


async def test_a_busy_server_says_when_to_come_back(reader: ImageReader) -> None:
    class Busy(Recorded):
        async def read(self, parts: list[ImagePart]) -> Any:
            raise BusyError("64 other images wait")

    with pytest.raises(ApiError, match="64 other images wait") as caught:
        await with_images(context(Busy(reader)), [*ONE], [part()])
    assert caught.value.status == 503
    assert caught.value.headers["retry-after"] == "1"


async def test_files_that_wait_are_bounded(reader: ImageReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blade_llm.api.images.reader._HELD_BYTES", len(PICTURE) + 1)
    with pytest.raises(BusyError, match="wait to be decoded"):
        await reader.read([part(), part()])
    assert len(await reader.read([part()])) == 1
    assert (reader._held, reader._workers.load.working) == (0, 0)
