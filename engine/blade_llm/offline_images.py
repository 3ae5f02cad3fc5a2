"""Images of the offline API's prompts: from what a caller gives to image tokens and pixels.

Pillow's images are resized here. What URLs show is a stranger's: it is fetched by a server's rules and decoded by
processes apart, which end with the call.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from blade_llm.api.images.serving import ImageServing, NoImages
from blade_llm.api.images.tokens import ImageTokens
from blade_llm.models.config import ModelConfig
from blade_llm.multimodal.errors import ImageError, ProcessorFilesError
from blade_llm.multimodal.options import ImageOptions
from blade_llm.multimodal.processors.reading import read_processor
from blade_llm.multimodal.request_images import ImageFile, process_images
from blade_llm.multimodal.settings import ImageSettings
from blade_llm.multimodal.workers import ImageWorkers
from blade_llm.spec.vision.images import ImagePixels, ImageSpan
from blade_llm.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from PIL import Image

_ANY: Final = 1 << 62
"""No limit: of a call, the caller decides how much it is."""
_DAY: Final = 86_400.0
_KINDS: Final = ("image_url", "image_pil", "video", "video_url")
"""Parts of a message that are images; the second is vLLM's, of the offline API alone. Videos are refused by name."""
_KEYS: Final = ("prompt", "prompt_token_ids", "multi_modal_data", "mm_processor_kwargs")
"""Of a prompt in vLLM's form."""
_OFF: Final = "is refused: with_visual=False leaves the vision tower out; give text"


class MediaSources(NamedTuple):
    """Where URLs may point, as the fields of these names of
    :class:`~blade_llm.multimodal.fetching.options.FetchOptions`."""

    allowed_local_media_path: tuple[str, ...] = ()
    allowed_media_domains: tuple[str, ...] = ()
    private_media_domains: tuple[str, ...] = ()

    @classmethod
    def of(cls, *given: str | Path | Sequence[str | Path] | None) -> MediaSources:
        """Each as one or several, or none."""
        several = ([each] if isinstance(each, str | Path) else each or () for each in given)
        return cls(*(tuple(str(each) for each in group if str(each)) for group in several))


class Picture(NamedTuple):
    """An image of a prompt."""

    source: str | Image.Image
    """A URL, or the image itself."""
    settings: ImageSettings
    where: str
    """Its place in what the caller gave, for errors."""


class WrittenPrompt(NamedTuple):
    """A prompt that has one image token for each of its images."""

    text: str | None
    """None: it was given as token ids."""
    token_ids: list[int]
    pictures: Sequence[Picture] = ()
    where: str = ""
    """Which one it is of several, for errors."""


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt that has as many image tokens for each image as there are embeddings."""

    text: str | None
    token_ids: list[int]
    images: list[ImageSpan] = field(default_factory=list)
    pixels: list[ImagePixels] = field(default_factory=list)
    """Of each of ``images``, those of equal ones once."""


def offline_serving(
    folder: Path,
    model: ModelConfig,
    sources: MediaSources,
    processor_kwargs: Mapping[str, Any],
    *,
    with_visual: bool = True,
) -> ImageServing | NoImages:
    """How prompts may bring images, or why not.

    Args:
        processor_kwargs: ``min_pixels`` and ``max_pixels`` in place of the model's own.
        with_visual: the vision tower is loaded.

    Raises ``ValueError`` for arguments that cannot be meant.
    """
    own = ImageSettings().with_processor_kwargs(processor_kwargs)
    options = ImageOptions(
        max_images_per_request=_ANY,
        max_pixels_per_request=_ANY,
        max_image_pixels=own.max_pixels,
        min_image_pixels=own.min_pixels,
    )
    if any(sources):
        from blade_llm.multimodal.fetching import FetchOptions  # the HTTP stack, which takes 0.8 s

        FetchOptions(**sources._asdict())
    vision = model.vision
    if vision is None:
        return NoImages()
    if not with_visual:
        return NoImages(reason=_OFF)
    try:
        processor = read_processor(folder)
    except ProcessorFilesError as error:
        return NoImages(reason=f"is refused: {error}")
    if processor is None:
        return NoImages()
    return ImageServing(
        processor=processor,
        image_token=vision.image_token,
        video_token=vision.video_token,
        options=options,
        **sources._asdict(),
    )


class OfflineImages:
    """The images of prompts. ``tokenizer``: where it has not the model's image token, images are refused."""

    def __init__(self, serving: ImageServing | NoImages, tokenizer: Tokenizer) -> None:
        self._serving = serving
        if isinstance(serving, ImageServing):
            try:
                self._tokens = ImageTokens.of(serving, tokenizer)
            except ValueError as error:
                self._serving = NoImages(reason=f"is refused: {error}")

    def of_prompt(self, prompt: Mapping[str, Any], tokenizer: Tokenizer, where: str = "") -> WrittenPrompt:
        """A prompt in vLLM's form: ``prompt`` or ``prompt_token_ids``, ``multi_modal_data`` with one ``image`` or a
        list of them (Pillow's), ``mm_processor_kwargs``. Raises ``ValueError``."""
        if unknown := sorted(prompt.keys() - {*_KEYS}):
            raise ValueError(f"{where}a prompt with {unknown[0]!r} is not supported; it may have {', '.join(_KEYS)}")
        text = prompt.get("prompt")
        if (text is None) == (prompt.get("prompt_token_ids") is None):
            raise ValueError(f"{where}a prompt needs one of 'prompt', a text, and 'prompt_token_ids'")
        data = prompt.get("multi_modal_data") or {}
        if others := sorted(data.keys() - {"image"}):
            raise ValueError(f"{where}multi_modal_data: {others[0]!r} is not supported; give 'image'")
        given = data.get("image")
        several = list(given) if isinstance(given, list | tuple) else [] if given is None else [given]
        if several and isinstance(self._serving, NoImages):
            raise ValueError(f"{where}multi_modal_data: 'image' {self._serving.reason}")
        try:
            settings = ImageSettings().with_processor_kwargs(prompt.get("mm_processor_kwargs") or {})
        except ImageError as error:
            raise ValueError(f"{where}{error}") from None
        pictures = [
            Picture(_pillow(image, place), settings, place)
            for index, image in enumerate(several)
            for place in [f"{where}multi_modal_data['image'][{index}]"]
        ]
        token_ids = list(prompt["prompt_token_ids"]) if text is None else tokenizer.encode(text)
        return WrittenPrompt(text, token_ids, pictures, where)

    def of_conversation(
        self, messages: Sequence[Mapping[str, Any]], processor_kwargs: Mapping[str, Any], where: str = ""
    ) -> tuple[Sequence[Mapping[str, Any]], list[Picture]]:
        """A conversation as chat templates take it, and its images. Without any it stays as it is; else it is what a
        server makes of it. Raises ``ValueError``."""
        if not any(map(_is_image, itertools.chain.from_iterable(map(_parts, messages)))):
            return messages, []
        from blade_llm.api.common.errors import ApiError
        from blade_llm.api.conversation import checked_message
        from blade_llm.api.image_parts import ImageParts
        from blade_llm.api.images.reader import ImagePart

        refusal = self._serving.reason if isinstance(self._serving, NoImages) else ""
        taken = ImageParts(refusal, _ANY, processor_kwargs)
        try:
            checked = [checked_message(_with_urls(each, index), index, taken) for index, each in enumerate(messages)]
        except ApiError as error:
            raise ValueError(f"{where}{error.detail.message}") from None
        return checked, [
            Picture(part.url.picture if isinstance(part.url, _NoUrl) else part.url, part.settings, where + part.where)
            for part in taken.found
            if isinstance(part, ImagePart)
        ]

    def inserted(self, prompts: Sequence[WrittenPrompt]) -> list[TokenPrompt]:
        """The prompts with their images, all of which are read. Raises ``ValueError``, for one that cannot be had or
        used as well."""
        for prompt in prompts:
            if prompt.pictures and (places := self._tokens.count_in(prompt.token_ids)) != len(prompt.pictures):
                raise ValueError(
                    f"{prompt.where}the prompt has {places} image tokens ({self._tokens.reserved[0]}) for "
                    f"{len(prompt.pictures)} images; it has to have one for each"
                )
        pixels = iter(self._read([picture for prompt in prompts for picture in prompt.pictures]))
        found = []
        for prompt in prompts:
            own = list(itertools.islice(pixels, len(prompt.pictures)))
            if not own:
                found.append(TokenPrompt(prompt.text, prompt.token_ids))
                continue
            assert isinstance(self._serving, ImageServing)
            token_ids, spans = self._tokens.expand(prompt.token_ids, own, self._serving.processor.count)
            distinct = {image.digest: image for image in own}
            found.append(TokenPrompt(prompt.text, token_ids, spans, [*distinct.values()]))
        return found

    def _read(self, pictures: Sequence[Picture]) -> list[ImagePixels]:
        """The pixels of each; one image with the same settings is read once."""
        keys = [(id(picture.source), picture.settings) for picture in pictures]
        pixels: dict[tuple[int, ImageSettings], ImagePixels] = {}
        urls: dict[tuple[int, ImageSettings], Picture] = {}
        for key, picture in zip(keys, pictures, strict=True):
            if key in pixels or key in urls:
                continue
            if isinstance(picture.source, str):
                urls[key] = picture
            else:
                pixels[key] = self._resized(picture.source, picture)
        if urls:
            found = _run_apart(lambda: self._fetched(list(urls.values())))
            pixels.update(zip(urls, found, strict=True))
        return [pixels[key] for key in keys]

    def _resized(self, image: Image.Image, picture: Picture) -> ImagePixels:
        from blade_llm.multimodal.pictures import pixels_of

        serving = self._serving
        assert isinstance(serving, ImageServing)
        try:
            bounds = picture.settings.bounds(serving.processor.own_bounds, serving.options)
            return pixels_of(image, serving.processor, bounds)
        except ImageError as error:
            raise ValueError(f"{picture.where}: {error.problem}") from None

    async def _fetched(self, pictures: Sequence[Picture]) -> list[ImagePixels]:
        from blade_llm.multimodal.fetching import Fetcher, FetchOptions, MediaError

        serving = self._serving
        assert isinstance(serving, ImageServing)
        rules = FetchOptions(
            allowed_local_media_path=serving.allowed_local_media_path,
            allowed_media_domains=serving.allowed_media_domains,
            private_media_domains=serving.private_media_domains,
            max_bytes=serving.options.max_image_bytes,
            max_request_bytes=_ANY,
            max_held_bytes=_ANY,
            max_request_urls=_ANY,
            request_timeout_s=_DAY,
        )
        fetcher, workers = Fetcher(rules), ImageWorkers(serving.processor, serving.options)
        try:
            files = await fetcher.fetch_all([str(picture.source) for picture in pictures])
            images = [ImageFile(data, picture.settings) for data, picture in zip(files, pictures, strict=True)]
            return await process_images(workers, images)
        except (MediaError, ImageError) as error:
            where = "" if error.index is None else f"{pictures[error.index].where}: "
            raise ValueError(f"{where}{error.problem if isinstance(error, ImageError) else error}") from None
        finally:
            await workers.close()
            await fetcher.aclose()


class _NoUrl(str):
    """Stands in a message for the URL of an image that has none."""

    picture: Image.Image


def _parts(message: Any) -> Iterable[Any]:
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, list) else ()


def _is_image(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in _KINDS


def _with_urls(message: Mapping[str, Any], index: int) -> Mapping[str, Any]:
    """``message`` with ``image_url`` in place of ``image_pil``."""
    parts = [
        _with_url(part, f"messages[{index}].content[{number}].image_pil") for number, part in enumerate(_parts(message))
    ]
    return {**message, "content": parts} if parts else message


def _with_url(part: Any, where: str) -> Any:
    if not _is_image(part) or part["type"] != "image_pil":
        return part
    url = _NoUrl(where)
    url.picture = _pillow(part.get("image_pil"), where)
    return {"type": "image_url", "image_url": {"url": url}}


def _pillow(value: Any, where: str) -> Image.Image:
    """``value``, if it is an image of Pillow's."""
    from PIL import Image

    if not isinstance(value, Image.Image):
        raise ValueError(
            f"{where} must be a PIL.Image.Image, not {type(value).__name__}; Image.open(file) makes one of a file, and "
            "Image.fromarray of an array"
        )
    return value


def _run_apart(work: Callable[[], Coroutine[Any, Any, list[ImagePixels]]]) -> list[ImagePixels]:
    """The result of ``work``, in an event loop of its own: notebooks have one that runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(work())).result()
