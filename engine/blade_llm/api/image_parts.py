"""The images of a conversation's messages: parts of the kind ``image_url``, checked and taken out in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from blade_llm.api.common.errors import bad_request
from blade_llm.api.common.response_notes import check_keys
from blade_llm.api.images.reader import ImagePart
from blade_llm.api.images.serving import UNSUPPORTED
from blade_llm.multimodal.errors import ImageError
from blade_llm.multimodal.settings import DETAILS, ImageSettings

_KEYS: Final = frozenset({"url", "detail", "min_pixels", "max_pixels"})
_PIXELS: Final = ("min_pixels", "max_pixels")
_ROLES: Final = ("user", "tool")


def is_image(part: Any) -> bool:
    """Whether a part of a message's content says that it is an image."""
    return isinstance(part, dict) and part.get("type") == "image_url"


@dataclass
class ImageParts:
    """Collects images in the order of their messages."""

    refusal: str = UNSUPPORTED
    """Why there may be none; empty: they may."""
    most: int = 0
    """Images of one request."""
    processor_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """``mm_processor_kwargs`` of the request, for images that do not say it themselves."""
    found: list[ImagePart] = field(default_factory=list)

    def take(self, part: Mapping[str, Any], where: str, role: object) -> dict[str, str]:
        """Keep the image of ``part``, and return what chat templates show in its place. Raises :class:`ApiError`
        400."""
        if self.refusal:
            raise bad_request(f"{where}: image_url {self.refusal}", "messages", "unsupported")
        if role not in _ROLES:
            message = f"{where}: images belong to messages of the user and to results of tools, not to role {role}"
            raise bad_request(message, "messages", "unsupported")
        if len(self.found) >= self.most:
            message = f"the conversation has more than {self.most} images (--max_images_per_request); send fewer"
            raise bad_request(message, "messages", "too_many_images")
        given = part.get("image_url")
        given = {"url": given} if isinstance(given, str) else given
        if not isinstance(given, dict) or not isinstance(given.get("url"), str):
            raise bad_request(f'{where}.image_url must be {{"url": "data:… or https://…"}}', "messages")
        check_keys(given, _KEYS, "messages[].content[].image_url")
        self.found.append(ImagePart(given["url"], self._settings(given, where), where))
        return {"type": "image"}

    def _settings(self, given: dict[str, Any], where: str) -> ImageSettings:
        detail = given.get("detail")
        if detail is not None and detail not in DETAILS:
            raise bad_request(f"{where}.image_url.detail must be one of {', '.join(DETAILS)}", "messages")
        own = {name: given[name] for name in _PIXELS if given.get(name) is not None}
        for name, value in own.items():
            if type(value) is not int or value < 1:
                raise bad_request(f"{where}.image_url.{name} must be a whole number of at least 1", "messages")
        settings = ImageSettings(detail)
        if self.processor_kwargs:
            try:
                settings = settings.with_processor_kwargs(self.processor_kwargs)
            except ImageError as error:
                raise bad_request(str(error), "mm_processor_kwargs") from None
        return msgspec.structs.replace(settings, **own)
