"""Messages of the chat that another API's request is turned into: texts and images in order, and where each image
stands in the client's own request, so that what a chat refuses names that."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from blade_llm.api.common.errors import ApiError

_IMAGE: Final = re.compile(r"\bmessages\[(\d{1,9})\]\.content\[(\d{1,9})\](: image_url\b)?")
"""How complaints about a chat name a part of it, and with it what kind of part that is."""


class PlacedImage(NamedTuple):
    """An image among the texts of a message."""

    part: dict[str, Any]
    """As a chat has it."""
    place: str
    """Where it stands in the client's request, as ``input[2].content[1]``."""


Part = str | PlacedImage


def placed_image(url: str, place: str, detail: str | None = None) -> PlacedImage:
    """The image at ``url``, which may be a ``data:`` URL, at that place of the client's request."""
    image = {"url": url} if detail is None else {"url": url, "detail": detail}
    return PlacedImage({"type": "image_url", "image_url": image}, place)


class TranslatedMessages:
    """The messages, in order. ``kind``: what the client's API calls an image."""

    def __init__(self, kind: str) -> None:
        self.messages: list[dict[str, Any]] = []
        self._kind = kind
        self._places: dict[int, dict[int, str]] = {}
        """By ``id`` of a message and index of its part."""

    def set_content(self, message: dict[str, Any], parts: Sequence[Part], join: Callable[[list[str]], str]) -> None:
        """Give ``message``, one of the messages, its content: the joined texts, and as a list of parts only if there
        are images. Texts that follow each other are one part."""
        content: list[dict[str, Any]] = []
        places: dict[int, str] = {}
        texts: list[str] = []

        def end_text() -> None:
            if text := join(texts):
                content.append({"type": "text", "text": text})
            texts.clear()

        for part in parts:
            if isinstance(part, str):
                texts.append(part)
                continue
            end_text()
            places[len(content)] = part.place
            content.append(part.part)
        if not places:
            message["content"] = join(texts)
            return
        end_text()
        message["content"] = content
        self._places[id(message)] = places

    @contextlib.contextmanager
    def named(self, messages: Sequence[dict[str, Any]] | None = None) -> Iterator[None]:
        """Errors raised inside name images by their places in the client's request.

        Args:
            messages: those of them that the chat consists of; None: all.
        """
        chat = self.messages if messages is None else messages
        try:
            yield
        except ApiError as error:
            detail = error.detail
            message = _IMAGE.sub(lambda found: self._named(found, chat), detail.message)
            if message == detail.message:
                raise
            raise ApiError(
                error.status, message, kind=detail.type, param=detail.param, code=detail.code, headers=error.headers
            ) from None

    def _named(self, found: re.Match[str], chat: Sequence[dict[str, Any]]) -> str:
        index = int(found[1])
        places = self._places.get(id(chat[index]), {}) if index < len(chat) else {}
        place = places.get(int(found[2]))
        if place is None:
            return found[0]
        return f"{place}: {self._kind}" if found[3] else place
