"""Content blocks: the JSON of each kind when it begins and ends, and its events."""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

import msgspec

Event = dict[str, Any]
"""One event of a stream."""


class Block(Protocol):
    """One element of ``content``."""

    def begun(self) -> dict[str, Any]:
        """The element before there is anything in it."""

    def grow(self, text: str) -> Event | None:
        """Append ``text``; the ``delta`` to show of it, if any."""

    def last_delta(self) -> Event | None:
        """A ``delta`` that comes before the block ends."""

    def body(self) -> dict[str, Any]:
        """The element as it is now."""


class TextBlock:
    """Text for the user."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def begun(self) -> dict[str, Any]:
        return {"type": "text", "text": ""}

    def grow(self, text: str) -> Event | None:
        self._texts.append(text)
        return {"type": "text_delta", "text": text}

    def last_delta(self) -> Event | None:
        return None

    def body(self) -> dict[str, Any]:
        return {"type": "text", "text": "".join(self._texts)}


class ThinkingBlock:
    """The reasoning of the model, verbatim; or nothing of it, where the request says ``omitted``.

    Nobody reads the signature, as thinking is taken back without a check. It is there because some clients drop blocks
    that have none: the digest of the text.
    """

    def __init__(self, *, omitted: bool) -> None:
        self._omitted = omitted
        self._texts: list[str] = []

    def begun(self) -> dict[str, Any]:
        return {"type": "thinking", "thinking": "", "signature": ""}

    def grow(self, text: str) -> Event | None:
        self._texts.append(text)
        return None if self._omitted else {"type": "thinking_delta", "thinking": text}

    def last_delta(self) -> Event | None:
        return {"type": "signature_delta", "signature": self._signature()}

    def body(self) -> dict[str, Any]:
        thinking = "" if self._omitted else "".join(self._texts)
        return {"type": "thinking", "thinking": thinking, "signature": self._signature()}

    def _signature(self) -> str:
        return hashlib.sha256("".join(self._texts).encode("utf-8", "surrogatepass")).hexdigest()


class ToolUseBlock:
    """A call for the client to execute."""

    def __init__(self, call_id: str, name: str) -> None:
        self._head = {"type": "tool_use", "id": call_id, "name": name}
        self._arguments: list[str] = []

    def begun(self) -> dict[str, Any]:
        return {**self._head, "input": {}}

    def grow(self, text: str) -> Event | None:
        self._arguments.append(text)
        return {"type": "input_json_delta", "partial_json": text}

    def last_delta(self) -> Event | None:
        return None

    def body(self) -> dict[str, Any]:
        return {**self._head, "input": _object("".join(self._arguments))}


def _object(arguments: str) -> dict[str, Any]:
    """Arguments as the object they have to be here; empty where they were cut short, or are none."""
    try:
        found = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
