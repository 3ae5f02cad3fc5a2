"""Forms of a request target (RFC 9112 section 3.2)."""

import re
from typing import Final

_ABSOLUTE: Final = re.compile(rb"https?://[^/?#@]+(?=[/?]|$)", re.IGNORECASE)
"""Scheme and authority of a target in absolute form, which every server has to take."""


def origin_form(target: bytes) -> bytes | None:
    """The path and query of a target, without scheme and host, whatever host a client sees here; None for what is
    neither a path nor an ``http`` URL."""
    if target.startswith(b"/"):
        return target
    found = _ABSOLUTE.match(target)
    if found is None:
        return None
    rest = target[found.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest
