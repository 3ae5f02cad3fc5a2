"""Where one JSON value ends, in text that comes in pieces."""

from __future__ import annotations

import re
from typing import Final

_STOPS: Final = re.compile(r"[^-+.:,\w\s]")
"""Characters outside strings that a scan stops at; the others only make up numbers, words and separators."""
_STRING_STOPS: Final = re.compile(r'["\\]')


class JsonValue:
    """Takes the characters of one value, the first of which is not whitespace.

    It follows strings and brackets only, as a value that is given on as it is written may well contain mistakes; a
    character that JSON has no use for outside strings ends the value as :attr:`broken`.
    """

    def __init__(self) -> None:
        self._depth = 0
        self.in_string = False
        self._escaped = False
        self._begun = False
        self.done = False
        self.broken = False

    def add(self, text: str, begin: int) -> int:
        """Take what belongs to the value from ``begin`` on; returns where it ends (so far)."""
        position, end = begin, len(text)
        while position < end and not self.done:
            if self.in_string:
                position = self._string(text, position)
            elif self._depth:
                position = self._nested(text, position)
            else:
                position = self._outermost(text, position)
        return position

    def _string(self, text: str, position: int) -> int:
        if self._escaped:
            self._escaped = False
            return position + 1
        found = _STRING_STOPS.search(text, position)
        if found is None:
            return len(text)
        if found[0] == "\\":
            self._escaped = True
        else:
            self.in_string = False
            self.done = not self._depth
        return found.end()

    def _nested(self, text: str, position: int) -> int:
        found = _STOPS.search(text, position)
        if found is None:
            return len(text)
        match found[0]:
            case '"':
                self.in_string = True
            case "{" | "[":
                self._depth += 1
            case "}" | "]":
                self._depth -= 1
                self.done = not self._depth
            case _:
                self.done = self.broken = True
                return found.start()
        return found.end()

    def _outermost(self, text: str, position: int) -> int:
        """The value's first character, or a number or word that has no end of its own."""
        character = text[position]
        if not self._begun and character in '"{[':
            self._begun = True
            self.in_string = character == '"'
            self._depth = int(not self.in_string)
        elif character.isalnum() or character in "-+._":
            self._begun = True
        else:
            self.done, self.broken = True, not self._begun
            return position
        return position + 1
