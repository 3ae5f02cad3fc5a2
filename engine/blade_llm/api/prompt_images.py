"""The images of a conversation in its prompt: from what the chat template wrote to image tokens and pixels."""

from __future__ import annotations

from dataclasses import dataclass, field

from blade_llm.api.common.context import ServerContext
from blade_llm.api.common.errors import ApiError, bad_request, context_exceeded
from blade_llm.api.generation.request_scope import kept_parts, while_connected
from blade_llm.api.images.errors import BadImagesError, BusyError
from blade_llm.api.images.reader import ImagePart, ImageReader
from blade_llm.api.images.serving import NoImages
from blade_llm.spec.vision.images import ImagePixels, ImageSpan


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Tokens of a prompt, and its images."""

    token_ids: list[int]
    images: list[ImageSpan] = field(default_factory=list)
    pixels: list[ImagePixels] = field(default_factory=list)
    """Of each of ``images``, those of equal ones once."""


async def with_images(
    context: ServerContext, token_ids: list[int], parts: list[ImagePart], limit: int | None = None
) -> PromptTokens:
    """``token_ids`` with the tokens of the images ``parts``, which are fetched and decoded for that.

    Args:
        limit: tokens that the context holds; what does not fit is refused before it is fetched. None: it is counted
            only.

    Raises :class:`ApiError`: 400, 503 where images cannot be taken just now, 499 when the client leaves meanwhile.
    """
    reader = context.images
    if isinstance(reader, NoImages):
        return PromptTokens(token_ids)
    places = reader.tokens.count_in(token_ids)
    if places > len(parts):
        message = f"messages have {reader.tokens.reserved[0]!r} in their text, which stands for an image; leave it out"
        raise bad_request(message, "messages", "invalid_prompt")
    if places < len(parts):
        message = f"the chat template shows {places} of {len(parts)} images; it is not one for images in these messages"
        raise bad_request(message, "messages", "unsupported")
    if not parts:
        return PromptTokens(token_ids)
    if limit is not None and len(token_ids) >= limit:
        however = f"your messages resulted in {len(token_ids)} tokens before those of their images. Please reduce them"
        raise context_exceeded(limit, however, "messages")
    images = await _read(reader, parts)
    expanded, spans = reader.tokens.expand(token_ids, images, reader.processor.count)
    if limit is not None and len(expanded) >= limit:
        however = (
            f"your messages resulted in {len(expanded)} tokens, {sum(span.count for span in spans)} of them for "
            f"{len(spans)} images, and an output takes at least one. Please send fewer images, or smaller ones (detail "
            "low, max_pixels)"
        )
        raise context_exceeded(limit, however, "messages")
    return PromptTokens(expanded, spans, [*{image.digest: image for image in images}.values()])


async def _read(reader: ImageReader, parts: list[ImagePart]) -> list[ImagePixels]:
    """Pixels of the images, which are read once for a request however often its prompt is made."""
    kept = kept_parts()
    keys = [(id(part.url), part.settings) for part in parts]  # to hash megabytes would hold up others
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
        kept.update(zip(missing, zip((part.url for part in new), found, strict=True), strict=True))
    return [kept[key][1] for key in keys]
