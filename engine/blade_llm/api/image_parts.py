"""The images and videos of a conversation's messages: parts of the kinds ``image_url``, ``video`` and ``video_url``,
checked and taken out in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from blade_llm.api.common.errors import bad_request
from blade_llm.api.common.response_notes import check_keys
from blade_llm.api.images.reader import ImagePart, VideoPart
from blade_llm.api.images.serving import NO_VIDEOS, UNSUPPORTED
from blade_llm.multimodal.errors import ImageError
from blade_llm.multimodal.settings import DETAILS, ImageSettings

_KEYS: Final = frozenset({"url", "detail", "min_pixels", "max_pixels"})
_PIXELS: Final = ("min_pixels", "max_pixels")
_ROLES: Final = ("user", "tool")
FRAMES_KEYS: Final = frozenset({"video", "fps", "sample_fps", *_PIXELS})
"""Of a part of the kind ``video``, beside ``type``."""
_VIDEO_KEYS: Final = frozenset({"url", "fps", *_PIXELS})
_KINDS: Final = frozenset({"image_url", "video", "video_url"})
_MIN_FPS, _MAX_FPS = 1e-3, 1e3


def is_image(part: Any) -> bool:
    """Whether a part of a message's content says that it is an image or a video."""
    kind = part.get("type") if isinstance(part, dict) else None
    return isinstance(kind, str) and kind in _KINDS


@dataclass
class ImageParts:
    """Collects images and videos in the order of their messages."""

    refusal: str = UNSUPPORTED
    """Why there may be none; empty: they may."""
    most: int = 0
    """Images of one request."""
    processor_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """``mm_processor_kwargs`` of the request, for images that do not say it themselves."""
    most_videos: int | None = None
    """Videos of one request; None: there may be none."""
    most_frames: int = 0
    """Files of one video."""
    found: list[ImagePart | VideoPart] = field(default_factory=list)

    def take(self, part: Mapping[str, Any], where: str, role: object) -> dict[str, str]:
        """Keep the image or video of ``part``, and return what chat templates show in its place. Raises
        :class:`ApiError` 400."""
        if self.refusal:
            raise bad_request(f"{where}: {part['type']} {self.refusal}", "messages", "unsupported")
        if role not in _ROLES:
            name = "images" if part["type"] == "image_url" else "videos"
            message = f"{where}: {name} belong to messages of the user and to results of tools, not to role {role}"
            raise bad_request(message, "messages", "unsupported")
        if part["type"] != "image_url":
            self.found.append(self._video(part, where))
            return {"type": "video"}
        if sum(isinstance(found, ImagePart) for found in self.found) >= self.most:
            message = f"the conversation has more than {self.most} images (--max_images_per_request); send fewer"
            raise bad_request(message, "messages", "too_many_images")
        given = part.get("image_url")
        given = {"url": given} if isinstance(given, str) else given
        if not isinstance(given, dict) or not isinstance(given.get("url"), str):
            raise bad_request(f'{where}.image_url must be {{"url": "data:… or https://…"}}', "messages")
        check_keys(given, _KEYS, "messages[].content[].image_url")
        self.found.append(ImagePart(given["url"], self._settings(given, f"{where}.image_url"), where))
        return {"type": "image"}

    def _video(self, part: Mapping[str, Any], where: str) -> VideoPart:
        if self.most_videos is None:
            raise bad_request(f"{where}: {part['type']} {NO_VIDEOS}", "messages", "unsupported")
        if sum(isinstance(found, VideoPart) for found in self.found) >= self.most_videos:
            message = f"the conversation has more than {self.most_videos} videos (--max_videos_per_request); send fewer"
            raise bad_request(message, "messages", "too_many_images")
        if part["type"] == "video":
            urls = self._frames(part, where)
            name = "sample_fps" if part.get("fps") is None else "fps"
            return VideoPart(urls, False, _fps(part, where, name), self._settings(_pixels_of(part), where), where)
        given = part.get("video_url")
        given = {"url": given} if isinstance(given, str) else given
        if not isinstance(given, dict) or not isinstance(given.get("url"), str):
            raise bad_request(f'{where}.video_url must be {{"url": "data:… or https://…"}}', "messages")
        check_keys(given, _VIDEO_KEYS, "messages[].content[].video_url")
        where_url = f"{where}.video_url"
        settings = self._settings(_pixels_of(given), where_url)
        return VideoPart((given["url"],), True, _fps(given, where_url), settings, where)

    def _frames(self, part: Mapping[str, Any], where: str) -> tuple[str, ...]:
        urls = part.get("video")
        if isinstance(urls, str):
            message = f"{where}.video must be a list of URLs of frames; send one file with all of them as video_url"
            raise bad_request(message, "messages")
        if not isinstance(urls, list) or not urls or not all(isinstance(url, str) for url in urls):
            raise bad_request(f'{where}.video must be ["data:… or https://…", …], a URL for each frame', "messages")
        if len(urls) > self.most_frames:
            message = f"{where}.video has {len(urls)} frames, and the limit is {self.most_frames} (--max_video_frames)"
            raise bad_request(message, "messages", "too_many_images")
        return tuple(urls)

    def _settings(self, given: Mapping[str, Any], where: str) -> ImageSettings:
        detail = given.get("detail")
        if detail is not None and detail not in DETAILS:
            raise bad_request(f"{where}.detail must be one of {', '.join(DETAILS)}", "messages")
        own = {name: value for name, value in _pixels_of(given).items() if value is not None}
        for name, value in own.items():
            if type(value) is not int or value < 1:
                raise bad_request(f"{where}.{name} must be a whole number of at least 1", "messages")
        settings = ImageSettings(detail)
        if self.processor_kwargs:
            try:
                settings = settings.with_processor_kwargs(self.processor_kwargs)
            except ImageError as error:
                raise bad_request(str(error), "mm_processor_kwargs") from None
        return msgspec.structs.replace(settings, **own)


def _pixels_of(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: given.get(name) for name in _PIXELS}


def _fps(given: Mapping[str, Any], where: str, name: str = "fps") -> float | None:
    value = given.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not _MIN_FPS <= value <= _MAX_FPS:
        raise bad_request(f"{where}.{name} must be a number between {_MIN_FPS:g} and {_MAX_FPS:g}", "messages")
    return float(value)
