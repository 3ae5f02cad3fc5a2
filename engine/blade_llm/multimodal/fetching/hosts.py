"""Which hosts a URL may name: parsing, allow-lists and ports."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final

import httpx

from blade_llm.multimodal.fetching.errors import MAX_HOST

_NAME: Final = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")


def normalized_host(url: httpx.URL) -> str | None:
    """The host as DNS and allow-lists know it: lower case, IDNA, no final dot, addresses in their shortest form.
    None: no such host."""
    host = url.raw_host.decode("ascii").lower()
    literal = _address(host)
    if literal is not None:
        return literal
    host = host.removesuffix(".")
    return host if len(host) <= MAX_HOST and _NAME.fullmatch(host) else None


def normalized_pattern(pattern: str) -> str:
    """An entry of an allow-list in the form that :func:`matches` takes. Raises ValueError for what names no host."""
    wrong = f"{pattern!r} names no host: give it as cdn.example or *.example, without scheme, port and path"
    literal = _address(pattern.removeprefix("[").removesuffix("]"))
    if literal is not None:
        return literal
    suffix = pattern.removeprefix("*.")
    if not suffix or any(mark in suffix for mark in ":/?#@*[]\\"):
        raise ValueError(wrong)
    try:
        host = normalized_host(httpx.URL(f"http://{suffix}/"))
    except httpx.InvalidURL as error:
        raise ValueError(wrong) from error
    if host is None:
        raise ValueError(wrong)
    return f"*.{host}" if suffix != pattern else host


def matches(host: str, patterns: Iterable[str]) -> bool:
    """Whether a normalized host is in a list of normalized patterns. ``*.example`` matches no address and no
    ``example``."""
    is_address = _address(host) is not None
    return any(
        host == pattern or (pattern.startswith("*.") and not is_address and host.endswith(pattern[1:]))
        for pattern in patterns
    )


def _address(host: str) -> str | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return None if isinstance(address, ipaddress.IPv6Address) and address.scope_id else str(address)
