"""``input_image`` as the part of a chat's message."""

from __future__ import annotations

from typing import Any, Final

from blade_llm.api.common.errors import alternatives, bad_request
from blade_llm.api.common.response_notes import check_keys
from blade_llm.api.translated_messages import PlacedImage, placed_image
from blade_llm.multimodal.settings import DETAILS

_KEYS: Final = frozenset({"type", "image_url", "file_id", "detail", "prompt_cache_breakpoint"})


def image_of(part: dict[str, Any], where: str) -> PlacedImage:
    """The image of a part ``input_image``; its URL is looked at by who fetches it. Raises :class:`ApiError` 400."""
    if part.get("file_id") is not None:
        message = f"{where}: file_id is not supported, as no files are kept here; send image_url"
        raise bad_request(message, "input", "unsupported")
    url, detail = part.get("image_url"), part.get("detail")
    if not isinstance(url, str):
        raise bad_request(f"{where}.image_url must be a string, e.g. data:image/png;base64,… or https://…", "input")
    if detail is not None and detail not in DETAILS:
        raise bad_request(f"{where}.detail must be {alternatives(DETAILS)}", "input")
    check_keys(part, _KEYS, "input[].content[]")
    return placed_image(url, where, detail)
