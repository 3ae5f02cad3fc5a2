"""The text of a freeform tool, unwrapped while it is written: models are taught calls with arguments only, so that the
one text such a tool takes is written as the argument ``input``."""

from __future__ import annotations

import json
import re
from typing import Any, Final

INPUT: Final = "input"
"""The one argument of a freeform tool."""
_HEAD: Final = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_WRITTEN_HEAD: Final = '{"input":"'
_STOPS: Final = re.compile(r'["\\]')
_QUOTES: Final = 3
"""Those of the key, and the one that begins the text."""
_HIGH: Final = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}")


class FreeformText:
    """One call. Pieces of ``{"input": "…"}`` in, pieces of the text out, however they are cut.

    Arguments of another shape are held back to their end: an object with one text is that text, anything else stays as
    it was written.
    """

    def __init__(self) -> None:
        self._held = ""
        """Not given out: the head of the object, all of one that has another shape, or the beginning of an escape."""
        self._inside = False
        self._done = False

    def add(self, piece: str) -> str:
        """The next part of the text; perhaps empty."""
        if self._done:
            return ""
        self._held += piece
        if not self._inside:
            found = _HEAD.match(self._held) if self._held.count('"') >= _QUOTES else None
            if found is None:
                return ""
            self._inside, self._held = True, self._held[found.end() :]
        return self._unescaped()

    def finish(self) -> str:
        """What was held back, now that nothing more comes."""
        if self._done or self._inside:
            return ""
        self._done = True
        if _WRITTEN_HEAD.startswith("".join(self._held.split())):
            return ""  # cut short before the text began
        try:
            found: Any = json.loads(self._held)
        except (ValueError, RecursionError):
            return self._held
        if isinstance(found, dict) and len(found) == 1:
            found = next(iter(found.values()))
        return _encodable(found) if isinstance(found, str) else self._held

    def _unescaped(self) -> str:
        text, position, found = self._held, 0, []
        while (stop := _STOPS.search(text, position)) is not None:
            found.append(text[position : stop.start()])
            position = stop.start()
            if stop[0] == '"':
                self._done, self._held = True, ""
                return "".join(found)
            end = _end_of_escape(text, position)
            if end > len(text):
                self._held = text[position:]
                return "".join(found)
            found.append(_decoded(text[position:end]))
            position = end
        found.append(text[position:])
        self._held = ""
        return "".join(found)


def _end_of_escape(text: str, begin: int) -> int:
    """Where the escape ends that begins there; beyond the text while that is not known."""
    if text[begin + 1 : begin + 2] != "u":
        return begin + 2
    end = begin + 6
    if end > len(text) or _HIGH.match(text, begin) is None:
        return end
    rest = text[end : end + 2]
    return end + 6 if rest == "\\u"[: len(rest)] else end


def _decoded(escape: str) -> str:
    try:
        return _encodable(json.loads(f'"{escape}"'))
    except ValueError:
        return escape


def _encodable(text: str) -> str:
    """Half a character cannot be sent."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
