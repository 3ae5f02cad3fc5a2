"""Name the field of a body that is not acceptable JSON, or holds what no field may hold.

All of this is for the rare case: a good body costs two searches for a few bytes.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

from blade_llm.api.common.errors import ApiError, bad_request, shortened
from blade_llm.api.common.unknown_fields import MAX_FIELDS

_MAX_SEARCHED_BYTES: Final = 1024 * 1024
"""Bytes; in longer bodies the field is not searched for, as that would hold up other requests."""
_NAMES: Final = frozenset(("model", "cache_salt"))
"""Fields whose values are compared or looked up."""


def malformed(body: bytes, error: Exception) -> ApiError:
    """The error for a ``body`` that the decoder refused with ``error``: Python's own decoder takes more, and so
    shows where the numbers are that JSON does not have, and the halves of characters."""
    try:
        if isinstance(error, RecursionError):
            raise error
        value = json.loads(body) if len(body) <= _MAX_SEARCHED_BYTES else None
        if isinstance(value, dict):
            for name, field in value.items():
                if fault := _fault(field):
                    name = _printable(shortened(name))
                    return bad_request(f"{name}: {fault}", name)
    except RecursionError:
        return bad_request("the body is not valid JSON: it is nested too deeply")
    except ValueError:
        pass
    return bad_request(f"the body is not valid JSON: {_printable(str(error))}")


def check_names(body: bytes, value: dict[str, Any]) -> None:
    """Raise :class:`ApiError` 400 for fields that are there twice, and for null bytes in what is no text but a name.

    In a text any character may stand: a model can write each of them, and its conversation has to go on.
    """
    if b"\\u0000" in body:
        for name, field in value.items():
            if name in _NAMES and "\0" in str(field):
                raise bad_request(f"{name!r} holds a null byte, which no name may", name)
    # each name is searched for in it all; a body with more of them is refused
    few = len(body) <= _MAX_SEARCHED_BYTES and len(value) <= MAX_FIELDS
    if few and any(_may_be_twice(body, name) for name in value):
        _check_twice(body)


def _may_be_twice(body: bytes, name: str) -> bool:
    """``"user"`` is also a role, and many names are words of texts: only those before a colon count."""
    spelled = f'"{name}"'.encode()
    return body.count(spelled) > 1 and len(re.findall(re.escape(spelled) + rb"\s*:", body)) > 1


def _check_twice(body: bytes) -> None:
    """Parse exactly: a name may also be that of a nested field, or a text."""
    outermost: list[tuple[str, Any]] = []

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal outermost
        outermost = found
        return {}  # the last call is for the outermost object

    json.loads(body, object_pairs_hook=pairs)
    seen: set[str] = set()
    for name, _ in outermost:
        if name in seen:
            raise bad_request(f"{shortened(name)!r} is given twice", shortened(name))
        seen.add(name)


def _fault(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number"
    if isinstance(value, str):
        return "" if _is_unicode(value) else "holds half of a surrogate pair, which is no character"
    if isinstance(value, dict):
        return next((fault for pair in value.items() for item in pair if (fault := _fault(item))), "")
    if isinstance(value, list):
        return next((fault for item in value if (fault := _fault(item))), "")
    return ""


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
