"""Image blocks as the parts of a chat's message."""

from __future__ import annotations

from typing import Any, Final

from blade_llm.api.common.errors import alternatives, bad_request
from blade_llm.api.common.response_notes import check_keys
from blade_llm.api.translated_messages import PlacedImage, placed_image

MEDIA_TYPES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")
"""Those of Anthropic's API."""
_KEYS: Final = frozenset({"type", "source", "cache_control"})
_SOURCE_KEYS: Final = frozenset({"type", "media_type", "data", "url"})


def image_of(block: dict[str, Any], where: str) -> PlacedImage:
    """The image of a block ``image``. Its data is copied once, into the URL, and looked at by who decodes it.

    Raises :class:`ApiError` 400.
    """
    check_keys(block, _KEYS, "messages[].content[]")
    source = block.get("source")
    if not isinstance(source, dict):
        raise bad_request(f'{where}.source must be an object, e.g. {{"type": "url", "url": …}}', "messages")
    place = f"{where}.source"
    match source.get("type"):
        case "base64":
            media_type, data = source.get("media_type"), source.get("data")
            if media_type not in MEDIA_TYPES:
                raise bad_request(f"{place}.media_type must be {alternatives(MEDIA_TYPES)}", "messages")
            if not isinstance(data, str):
                raise bad_request(f"{place}.data must be a string of base64", "messages")
            url: Any = f"data:{media_type};base64,{data}"
        case "url":
            url = source.get("url")
            if not isinstance(url, str):
                raise bad_request(f"{place}.url must be a string", "messages")
        case "file":
            message = f"{place}: file is not supported, as no files are kept here; send base64 or url"
            raise bad_request(message, "messages", "unsupported")
        case _:
            raise bad_request(f"{place}.type must be base64 or url", "messages")
    check_keys(source, _SOURCE_KEYS, "messages[].content[].source")
    return placed_image(url, where)
