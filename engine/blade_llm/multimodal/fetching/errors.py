"""Why a picture cannot be had, and how its URL is named where people read."""

from __future__ import annotations

import re
from typing import Final, Literal

import httpx

MAX_URL: Final = 8192
"""Longest ``http(s):`` or ``file:`` URL, in characters."""
MAX_HOST: Final = 253
"""Longest name in DNS."""

ErrorKind = Literal["invalid", "refused", "unavailable", "too_large", "timeout", "busy"]
"""``invalid``: no such URL; ``refused``: this server's rules; ``unavailable``: the far side; ``busy``: this server, and
the same request may succeed later."""

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,15}):")
_MEDIA_TYPE: Final = re.compile(r"(?i)data:([a-z0-9.+-]{1,32}/[a-z0-9.+-]{1,64})[;,]")


def describe(url: str) -> str:
    """``url`` as logs and error messages name it: scheme, host (of ``data:`` the media type) and length. Never its
    credentials, path, query or data."""
    length = f"({len(url)} characters)"
    scheme = _SCHEME.match(url)
    if scheme is None:
        return f"a URL without a scheme {length}"
    name = scheme[1].lower()
    if name == "data":
        media_type = _MEDIA_TYPE.match(url)
        return f"data:{media_type[1] if media_type else ''} {length}"
    if name in ("http", "https") and len(url) <= MAX_URL:
        try:
            host = httpx.URL(url).raw_host.decode("ascii")
        except (httpx.InvalidURL, ValueError):
            host = ""
        if 0 < len(host) <= MAX_HOST:
            return f"{name}://{f'[{host}]' if ':' in host else host} {length}"
    return f"{name}: {length}"


class MediaError(Exception):
    """An image or video that cannot be had. The message is meant for the client: it names the URL as :func:`describe`
    does, and says what to change."""

    def __init__(self, kind: ErrorKind, reason: str, url: str | None = None, *, detail: str = "") -> None:
        super().__init__(reason if url is None else f"{describe(url)}: {reason}")
        self.kind: ErrorKind = kind
        self.detail = detail
        """What the operator may know besides, and the client not."""
        self.index: int | None = None
        """Which of the URLs of a request, where there were several; set by :meth:`Fetcher.fetch_all`."""


def too_large(url: str, limit: int, what: str = "it") -> MediaError:
    """For the URL of ``what`` has more than ``limit`` bytes."""
    return MediaError("too_large", f"{what} has more than {limit} bytes; make the picture smaller", url)


def check_length(url: str) -> None:
    """Raises MediaError for one of more than :data:`MAX_URL` characters."""
    if len(url) > MAX_URL:
        raise MediaError("invalid", f"it is longer than {MAX_URL} characters", url)
