"""Calls in the middle of text: finds where each begins and ends, and leaves the rest as content."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from blade_llm.text.events import Content, Event
from blade_llm.text.markers import WHITESPACE, HeldText, settled
from blade_llm.text.tool_parsers.call_object import CallObject
from blade_llm.text.tool_parsers.reader import CallReader

Written = Literal["object", "list", "named", "fenced", "parameters", "pairs", "python"]
"""How one call is written: an object with name and arguments; a list of such objects; a name and the object of its
arguments; the same with the object in a block of code; tags with the name of each argument; pairs of tags; Python."""


class Parser(Protocol):
    """Parses one output; what comes out does not depend on how the text is cut into pieces."""

    def add(self, piece: str) -> list[Event]: ...
    def finish(self) -> list[Event]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """How a model family writes calls.

    Without a ``reader``: ``begin``, an object, ``end``; several with ``separator`` between.
    """

    name: str
    """What ``--tool_call_parser`` calls it."""
    begin: str = ""
    """The marker before a call."""
    end: str = ""
    separator: str = ""
    """Between calls, apart from whitespace."""
    begins_bare: bool = False
    """An output, or what follows ``separator``, may begin with a call's object without ``begin``."""
    arguments_key: str = "arguments"
    """``{"name": …, KEY: {…}}``, as the model is taught to write it."""
    around: str = ""
    """Whitespace between the markers and the object, and between a call and the next."""
    reader: type[CallReader] | None = None
    """Reads calls that are written in another way."""
    special: tuple[str, ...] = ()
    """Markers that the reader has to see."""
    written: Written = "object"
    """How the model is taught to write what the reader reads, where that may be more."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that the parser has to see even where they are special tokens."""
        return tuple(marker for marker in (self.begin, self.end, *self.special) if marker)

    def parser(self, names: Collection[str] = (), parameters: Mapping[str, Any] | None = None) -> Parser:
        """A fresh one, for one output to a request that offers the functions ``names``.

        Args:
            parameters: function → JSON Schema of its parameters.
        """
        if self.reader is not None:
            return self.reader(names, parameters)
        return CallParser(self, names)


class CallParser:
    """Parses one output. The outcome does not depend on how the text is cut into pieces.

    Whitespace around calls is no content. What begins like a call and is none stays content, as it is written.

    Args:
        names: the functions the request offers; an object without a marker is a call only of one of these.
    """

    def __init__(self, form: CallForm, names: Collection[str] = ()) -> None:
        self._form = form
        self._names = names
        self._state: Literal["text", "call", "after"] = "text"
        self._held = HeldText()
        """Text outside calls that is not decided yet."""
        self._read: list[str] = []
        """In a call that has not begun, in pieces: all of it, with what stands before."""
        self._prefix = 0
        """How much of ``_read`` is content should it be no call: up to its marker, or without one its bracket."""
        self._call: CallObject | None = None
        self._num_calls = 0
        self._bare_here = form.begins_bare
        """What comes next may be a call without marker."""
        self._before = ""
        """The separator and whitespace that came before it."""
        self._after_call = False
        """No content yet since the last call."""

    def add(self, piece: str) -> list[Event]:
        """What ``piece`` brings."""
        return self._run(piece, final=False)

    def finish(self) -> list[Event]:
        """What was held back, now that nothing more comes."""
        return self._run("", final=True)

    def _run(self, piece: str, *, final: bool) -> list[Event]:
        if self._state != "call" and not final and self._held.keeps(piece):
            return []
        events: list[Event] = []
        rest: str | None = piece
        while rest is not None:
            match self._state:
                case "text":
                    rest = self._text(self._held.take() + rest, events, final)
                case "call":
                    rest = self._object(rest, events, final)
                case "after":
                    rest = self._after(self._held.take() + rest, events, final)
        return events

    # Each state's method takes the undecided text, and returns what the next state shall go on with; None: wait.

    def _text(self, text: str, events: list[Event], final: bool) -> str | None:
        begin = self._form.begin
        if self._bare_here:
            first = len(text) - len(text.lstrip(WHITESPACE))
            if first == len(text) and not final:
                self._held.hold(text)
                return None
            if text[first : first + 1] == "{":
                return self._begin_call(text, first, "")
            if not text.startswith(begin, first):
                if begin.startswith(text[first:]) and not final:
                    self._held.hold(text)
                    return None
                self._bare_here = False
                text, self._before = self._before + text, ""
        found = text.find(begin)
        if found >= 0:
            before = len(text[:found].rstrip(WHITESPACE))
            if not self._bare_here:
                self._content(text[:before], events)
                text, found = text[before:], found - before
            return self._begin_call(text, found, begin)
        keep = len(text) if final else settled(text, begin)
        self._content(text[:keep], events)
        self._held.hold(text[keep:])
        return None

    def _begin_call(self, text: str, position: int, marker: str) -> str:
        """At ``position`` of ``text``, which is whitespace up to there."""
        self._state, self._bare_here = "call", False
        self._read = [before := self._before + text[:position] + marker]
        self._before, self._prefix = "", len(before) + (not marker)
        names = None if marker else self._names
        self._call = CallObject(self._num_calls, names=names, needs_arguments=not marker)
        return text[position + len(marker) :]

    def _object(self, text: str, events: list[Event], final: bool) -> str | None:
        call = self._call
        assert call is not None
        end = call.add(text, 0, events)
        if final and not (call.done or call.broken):
            call.finish(events)
        self._read.append(text[:end])
        if call.begun:
            self._read.clear()
        if call.broken:
            return self._fall_back(text[end:], events)
        if not call.done:
            return None
        self._num_calls += 1
        self._state, self._after_call = "after", True
        return text[end:]

    def _fall_back(self, rest: str, events: list[Event]) -> str:
        """It was no call: what stood before its object is content, and the object may yet hold a marker."""
        self._state = "text"
        text, self._read = "".join([*self._read, rest]), []
        self._content(text[: self._prefix], events)
        return text[self._prefix :]

    def _after(self, text: str, events: list[Event], final: bool) -> str | None:
        """Between a call's object and whatever comes next."""
        expected = self._form.end or self._form.separator
        first = len(text) - len(text.lstrip(WHITESPACE))
        found = text[first:]
        if not final and len(found) < len(expected) and expected.startswith(found):
            self._held.hold(text)
            return None
        self._state = "text"
        if final and expected == self._form.end and expected.startswith(found):
            return None  # the output was cut short in the middle of the end marker
        if found.startswith(expected):
            if not self._form.end:
                self._bare_here, self._before = True, text[: first + len(expected)]
            return found[len(expected) :]
        return text

    def _content(self, text: str, events: list[Event]) -> None:
        if self._after_call:
            text = text.lstrip(WHITESPACE)
        if text:
            self._after_call = False
            events.append(Content(text))
