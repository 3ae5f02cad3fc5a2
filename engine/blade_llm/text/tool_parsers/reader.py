"""Readers of calls that are no JSON objects: each is a script that reads its format from front to back.

A script is a generator: it reads as if all text were there, and waits (``yield``) where the text so far does not
decide. So the outcome does not depend on how the text is cut into pieces.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any, ClassVar, Final

from blade_llm.text.events import Arguments, CallBegun, CallEnded, Content, Event
from blade_llm.text.markers import WHITESPACE, settled
from blade_llm.text.tool_parsers.json_value import JsonValue

_NAME: Final = re.compile(r"[\w.:-]{1,128}")
"""How functions may be called."""
Waiting = Generator[None, None, None]


class CallReader:
    """Reads one output; a subclass knows how one model family writes calls.

    White space around calls is no content. What begins like a call and is none stays content, as it is written.

    Args:
        names: the functions the request offers.
        parameters: function → JSON Schema of its parameters, for formats that do not tell text from numbers.
    """

    begins: ClassVar[tuple[str, ...]] = ()
    """Markers that a call may begin with."""

    def __init__(self, names: Collection[str] = (), parameters: Mapping[str, Any] | None = None) -> None:
        self._names = names
        self._parameters = parameters or {}
        self._text = ""
        self._pos = 0
        """All before it was read."""
        self._final = False
        self._decides_nothing: Callable[[str], bool] | None = None
        """Of a piece, while the script waits. None: any may decide something."""
        self._pieces: list[str] = []
        """Those that came and decided nothing: joined only when one does."""
        self._events: list[Event] = []
        self._index = -1
        self._open = False
        """A call has begun and not ended."""
        self._after_call = False
        """No content yet since the last call."""
        self._num_arguments = 0
        self._script = self._run()
        next(self._script)

    def add(self, piece: str) -> list[Event]:
        """What ``piece`` brings."""
        if self._decides_nothing is not None and self._decides_nothing(piece):
            self._pieces.append(piece)
            return []
        return self._resume(piece)

    def finish(self) -> list[Event]:
        """What was held back, now that nothing more comes."""
        self._final = True
        events = self._resume("")
        if self._open:
            self._end_call()
            events = self._taken_events()
        return events

    def _resume(self, piece: str) -> list[Event]:
        self._text = "".join([self._text, *self._pieces, piece])
        self._pieces, self._decides_nothing = [], None
        try:
            self._script.send(None)
        except StopIteration:
            pass
        return self._taken_events()

    def _taken_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    # What the text is

    def _run(self) -> Waiting:
        while True:
            marker = yield from self._content_until(self.begins)
            if not marker:
                return
            calls = self._index
            end = self._pos + len(marker)
            yield from self._calls()
            if self._index == calls:  # it was none: only its marker is sure to be content
                self._content(self._text[:end])
                self._text, self._pos = self._text[end:], 0

    def _calls(self) -> Waiting:
        """Read what begins with one of :attr:`begins`, at the current position."""
        raise NotImplementedError

    def _content_until(self, markers: tuple[str, ...]) -> Generator[None, None, str]:
        """Content up to the first of ``markers``, which is returned; ``""``: the text ends without one.

        White space before the marker stays in the text, before the current position: it may yet be content.
        """
        while True:
            text = self._text[self._pos :]
            found = [(at, -len(marker), marker) for marker in markers if (at := text.find(marker)) >= 0]
            if found:
                at, _, marker = min(found)
                keep = len(text[:at].rstrip(WHITESPACE))
                self._content(text[:keep])
                self._text, self._pos = text[keep:], at - keep
                return marker
            keep = len(text) if self._final else min(settled(text, marker) for marker in markers)
            self._content(text[:keep])
            self._text, self._pos = text[keep:], 0
            if self._final:
                return ""
            yield from self._wait(is_blank if is_blank(self._text) else None)

    def _content(self, text: str) -> None:
        if self._after_call:
            text = text.lstrip(WHITESPACE)
        if text:
            self._after_call = False
            self._events.append(Content(text))

    # Reading

    def _wait(self, decides_nothing: Callable[[str], bool] | None = None) -> Waiting:
        """For more text, and one that may decide something at this place."""
        self._decides_nothing = decides_nothing
        yield

    def _wait_for(self, characters: str) -> Waiting:
        """For a piece with one of them."""
        yield from self._wait(lambda piece: not any(character in piece for character in characters))

    def _space(self) -> Waiting:
        """Skip white space."""
        while True:
            rest = len(self._text) - len(self._text[self._pos :].lstrip(WHITESPACE))
            if rest < len(self._text) or self._final:
                self._pos = rest
                return
            yield from self._wait(is_blank)

    def _one_of(self, *options: str) -> Generator[None, None, str]:
        """Which of ``options`` stands here; it is read. ``""``: none."""
        while True:
            text = self._text[self._pos : self._pos + max(map(len, options))]
            for option in options:
                if text.startswith(option):
                    self._pos += len(option)
                    return option
            begun = any(option.startswith(text) for option in options)
            if begun and self._final and self._index >= 0:
                self._pos = len(self._text)  # the output was cut short in the middle of a marker
            if self._final or not begun:
                return ""
            yield from self._wait()

    def _until(self, *ends: str, most: int | None = None) -> Generator[None, None, tuple[str, str] | None]:
        """The text before the first of ``ends``, and which; both are read. None: there is none, or after more than
        ``most`` characters."""
        searched = self._pos
        while True:
            found = [(at, end) for end in ends if (at := self._text.find(end, searched)) >= 0]
            if found:
                at, end = min(found)
                if most is not None and at - self._pos > most:
                    return None
                text, self._pos = self._text[self._pos : at], at + len(end)
                return text, end
            if self._final:
                self._pos = len(self._text) if self._open else self._pos  # cut short
                return None
            if most is not None:
                if len(self._text) - self._pos >= most + max(map(len, ends)):
                    return None
                yield from self._wait()
                continue
            searched = max(self._pos, len(self._text) - max(map(len, ends)) + 1)
            yield from self._wait_for("".join(end[-1] for end in ends))

    def _name(self, *ends: str) -> Generator[None, None, tuple[str, str] | None]:
        """A function's name before one of ``ends``, and which, white space between them or not. None: it is no name.

        An end that is white space itself is taken where none of the others stands behind it.
        """
        while True:
            text = self._text[self._pos :]
            match = _NAME.match(text)
            rest = text[match.end() :] if match else text
            after = rest.lstrip(WHITESPACE)
            undecided = not text or (match is not None and any(end.startswith(after) for end in ends))
            for end in ends if match else ():
                tail = rest if end.isspace() else after
                if match and tail.startswith(end) and not (end.isspace() and undecided and not self._final):
                    self._pos += len(text) - len(tail) + len(end)
                    return match[0], end
            if self._final or not undecided:
                return None
            yield from self._wait(is_blank if rest and not after else None)

    # What was read

    def _begin_call(self, name: str) -> None:
        self._index += 1
        self._open, self._num_arguments = True, 0
        self._events.append(CallBegun(self._index, name))

    def _end_call(self) -> None:
        self._open, self._after_call = False, True
        self._events.append(CallEnded(self._index))
        self._text, self._pos = self._text[self._pos :], 0

    def _write(self, text: str) -> None:
        if text:
            self._events.append(Arguments(self._index, text))

    def _write_key(self, key: str) -> None:
        """The beginning of one argument, of calls whose arguments are written here."""
        self._write(f"{', ' if self._num_arguments else '{'}{json.dumps(key, ensure_ascii=False)}: ")
        self._num_arguments += 1

    def _close_arguments(self) -> None:
        self._write("}" if self._num_arguments else "{}")

    def _json(self) -> Waiting:
        """A JSON object, given on as it comes. Before it the call has begun."""
        value = JsonValue()
        while True:
            end = value.add(self._text, self._pos)
            self._write(self._text[self._pos : end])
            self._text, self._pos = self._text[end:], 0
            if value.done or self._final:
                return
            yield from self._wait()


def is_blank(text: str) -> bool:
    return not text.strip(WHITESPACE)


def no_constant(text: str) -> None:
    """For ``json.loads``, which takes NaN and infinities that JSON has not."""
    raise ValueError(text)


def literal_json(text: str) -> str | None:
    """The JSON of a Python literal. None: it is none, or has no counterpart."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes that Python does not know
            value = ast.literal_eval(text.strip())
        found = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    try:
        found.encode()
    except UnicodeEncodeError:  # half a character, which no output can carry as it is
        return json.dumps(value)
    return found
