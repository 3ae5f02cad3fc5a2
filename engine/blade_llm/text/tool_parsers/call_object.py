"""One tool call as models write it, ``{"name": …, "arguments": {…}}``, read while it is being written."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, Final

from blade_llm.text.events import Arguments, CallBegun, CallEnded, Event
from blade_llm.text.markers import WHITESPACE
from blade_llm.text.tool_parsers.json_value import JsonValue

_ARGUMENTS: Final = ("arguments", "parameters")
"""Models mix up the two names; either is taken."""


class CallObject:
    """Reads the object of call number ``index``.

    It commits itself (:attr:`begun`) when name and arguments are sure to be there; until then a mistake makes it
    :attr:`broken`, and nothing has been given out. Once begun it never is: a mistake only ends it.

    Args:
        names: the functions there are; a call of another is no call. None: any name will do.
        needs_arguments: an object without arguments is no call.
    """

    def __init__(self, index: int, *, names: Collection[str] | None = None, needs_arguments: bool = False) -> None:
        self._index = index
        self._names = names
        self._needs_arguments = needs_arguments
        self._expected = "{"
        """``{``, ``key`` (or the end), ``:``, ``value``, ``,`` (or the end)."""
        self._value: JsonValue | None = None
        """The key or value that is being read, and its text unless that is given on or left out."""
        self._pieces: list[str] = []
        self._key = ""
        self._name: str | None = None
        self._arguments: str | None = None
        """Those that came before the name, or as a string."""
        self._streams = False
        """The value that is being read are the arguments, given on as they come."""
        self.begun = False
        self.broken = False
        self.done = False

    def add(self, text: str, begin: int, events: list[Event]) -> int:
        """Take what belongs to the object from ``begin`` on; returns where it ends (so far)."""
        position = begin
        while position < len(text) and not self.done and not self.broken:
            if self._value is not None:
                position = self._go_on(self._value, text, position, events)
            elif text[position] in WHITESPACE:
                position += 1
            else:
                position = self._structure(text, position, events)
        return position

    def finish(self, events: list[Event]) -> None:
        """Nothing more comes."""
        if self.begun:
            self._end(events)
        else:
            self.broken = True

    def _structure(self, text: str, position: int, events: list[Event]) -> int:
        """A bracket, colon or comma of the object itself, or the first character of a key or value."""
        match self._expected, text[position]:
            case "{", "{":
                self._expected = "key"
            case (("key" | ","), "}"):
                self._close(events)
            case "key", '"':
                return self._begin_value(position)
            case ":", ":":
                self._expected = "value"
            case ",", ",":
                self._expected = "key"
            case "value", character:
                takes_arguments = self._key in _ARGUMENTS and self._arguments is None and not self.begun
                if takes_arguments and self._name is not None and character == "{":
                    self._begin(events)
                    self._streams = True
                return self._begin_value(position)
            case _:
                self._fail(events)
                return position
        return position + 1

    def _begin_value(self, position: int) -> int:
        self._value, self._pieces = JsonValue(), []
        return position

    def _go_on(self, value: JsonValue, text: str, position: int, events: list[Event]) -> int:
        end = value.add(text, position)
        piece = text[position:end]
        if self._streams:
            if piece:
                events.append(Arguments(self._index, piece))
        elif not self.begun:
            self._pieces.append(piece)
        if value.done:
            self._value = None
            if value.broken:
                self._fail(events)
            elif self._streams:
                self._streams, self._expected = False, ","
            else:
                self._take_value(events)
        return end

    def _take_value(self, events: list[Event]) -> None:
        """A key, or a value that was read to its end."""
        is_key = self._expected == "key"
        self._expected = ":" if is_key else ","
        if self.begun:
            return  # after the arguments: whatever it is, it is not needed
        text = "".join(self._pieces)
        found = _decoded(text)
        if is_key:
            self._key = found if isinstance(found, str) else ""
        elif self._key == "name":
            if isinstance(found, str) and found and (self._names is None or found in self._names):
                self._name = found
            else:
                self._fail(events)
        elif self._key in _ARGUMENTS and self._arguments is None:
            self._arguments = _as_object(text, found)
            if self._arguments is None:
                self._fail(events)

    def _close(self, events: list[Event]) -> None:
        if not self.begun:
            if self._name is None or (self._arguments is None and self._needs_arguments):
                self._fail(events)
                return
            self._begin(events)
            events.append(Arguments(self._index, self._arguments or "{}"))
        self._end(events)

    def _begin(self, events: list[Event]) -> None:
        self.begun = True
        events.append(CallBegun(self._index, self._name or ""))

    def _end(self, events: list[Event]) -> None:
        self.done = True
        events.append(CallEnded(self._index))

    def _fail(self, events: list[Event]) -> None:
        if self.begun:
            self._end(events)
        else:
            self.broken = True


def _decoded(text: str) -> Any:
    """The value, or None where it is none or holds half a character (``\\ud800``), which no output can carry."""
    try:
        value = json.loads(text, strict=False)
        if isinstance(value, str):
            value.encode()
    except (ValueError, RecursionError):
        return None
    return value


def _as_object(text: str, value: Any) -> str | None:
    """The JSON text of arguments that were not given on as they came. None: they are not an object."""
    if text.startswith("{"):
        return text
    if value is None:
        return "{}" if text == "null" else None
    return value if isinstance(value, str) and isinstance(_decoded(value), dict) else None
