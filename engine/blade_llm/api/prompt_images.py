"""The images and videos of a conversation in its prompt: from what the chat template wrote to their tokens and
pixels."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

from blade_llm.api.common.context import ServerContext
from blade_llm.api.common.errors import ApiError, bad_request, context_exceeded
from blade_llm.api.generation.request_scope import kept_parts, while_connected
from blade_llm.api.images.errors import BadImagesError, BusyError
from blade_llm.api.images.reader import ImagePart, ImageReader, VideoPart
from blade_llm.api.images.serving import NoImages
from blade_llm.multimodal.request_videos import VideoPixels
from blade_llm.spec.vision.images import ImagePixels, ImageSpan

_A: Final = {"image": "an image", "video": "a video"}


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Tokens of a prompt, and its images and videos."""

    token_ids: list[int]
    images: list[ImageSpan] = field(default_factory=list)
    pixels: list[ImagePixels] = field(default_factory=list)
    """Of each of ``images``, those of equal ones once."""


async def with_images(
    context: ServerContext, token_ids: list[int], parts: list[ImagePart | VideoPart], limit: int | None = None
) -> PromptTokens:
    """``token_ids`` with the tokens of the images and videos ``parts``, which are fetched and decoded for that.

    Args:
        limit: tokens that the context holds; what does not fit is refused before it is fetched. None: it is counted
            only.

    Raises :class:`ApiError`: 400, 503 where images cannot be taken just now, 499 when the client leaves meanwhile.
    """
    reader = context.images
    if isinstance(reader, NoImages):
        return PromptTokens(token_ids)
    num_videos = sum(isinstance(part, VideoPart) for part in parts)
    _check_places(reader, "image", 0, reader.tokens.count_in(token_ids), len(parts) - num_videos)
    _check_places(reader, "video", 1, reader.tokens.videos_in(token_ids), num_videos)
    if not parts:
        return PromptTokens(token_ids)
    if limit is not None and len(token_ids) >= limit:
        however = f"your messages resulted in {len(token_ids)} tokens before those of their images. Please reduce them"
        raise context_exceeded(limit, however, "messages")
    found = await _read(reader, parts)
    images = [each for each in found if isinstance(each, ImagePixels)]
    videos = [each for each in found if isinstance(each, VideoPixels)]
    expanded, spans = reader.tokens.expand(token_ids, images, reader.processor.count, videos)
    if limit is not None and len(expanded) >= limit:
        however = (
            f"your messages resulted in {len(expanded)} tokens, {sum(span.count for span in spans)} of them for "
            f"{_of(parts)}, and an output takes at least one. Please send fewer of them, or smaller ones (detail low, "
            "max_pixels)"
        )
        raise context_exceeded(limit, however, "messages")
    stretched = {span.digest for span in spans if span.stretched}
    for part, each in zip(parts, found, strict=True):
        if isinstance(each, VideoPixels) and each.images[0].digest in stretched:
            problem = (
                "the video's frames are so far apart in time that they have more positions than tokens; send frames "
                "that are closer to each other, with their fps, or larger ones (min_pixels)"
            )
            raise bad_request(f"{part.where}: {problem}", "messages", "unsupported")
    images += [image for video in videos for image in video.images]
    return PromptTokens(expanded, spans, [*{image.digest: image for image in images}.values()])


def _check_places(reader: ImageReader, name: str, token: int, places: int, parts: int) -> None:
    """Whether the template has written as many tokens as there are parts. ``token``: which of the reserved ones."""
    if places > parts:
        text = reader.tokens.reserved[token]
        message = f"messages have {text!r} in their text, which stands for {_A[name]}; leave it out"
        raise bad_request(message, "messages", "invalid_prompt")
    if places < parts:
        message = f"the chat template shows {places} of {parts} {name}s; it is not one for {name}s in these messages"
        raise bad_request(message, "messages", "unsupported")


def _of(parts: list[ImagePart | VideoPart]) -> str:
    videos = sum(isinstance(part, VideoPart) for part in parts)
    counts = ((len(parts) - videos, "images"), (videos, "videos"))
    return " and ".join(f"{count} {name}" for count, name in counts if count)


def _key(part: ImagePart | VideoPart) -> Hashable:
    urls = tuple(map(id, part.urls))  # to hash megabytes would hold up others
    return (urls, part.settings, part.fps, part.animated) if isinstance(part, VideoPart) else (urls, part.settings)


async def _read(reader: ImageReader, parts: list[ImagePart | VideoPart]) -> list[ImagePixels | VideoPixels]:
    """Pixels of the images and videos, which are read once for a request however often its prompt is made."""
    kept = kept_parts()
    keys = [_key(part) for part in parts]
    missing = {key: part for key, part in zip(keys, parts, strict=True) if key not in kept}
    new = list(missing.values())
    if new:
        try:
            found = await while_connected(reader.read(new))
        except BusyError as error:
            headers = {"retry-after": "1"}
            raise ApiError(503, str(error), kind="overloaded_error", code="busy", headers=headers) from None
        except BadImagesError as error:
            where = "" if error.index is None else f"{new[error.index].where}: "
            raise bad_request(f"{where}{error}", "messages", error.code) from None
        kept.update(zip(missing, zip((part.urls for part in new), found, strict=True), strict=True))
    return [kept[key][1] for key in keys]
