"""Calls as a list of Python calls, ``[get_weather(city="Oslo"), now()]``: Llama 3.2's and Llama 4's."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from typing import Final

from blade_llm.text.tool_parsers.reader import CallReader, Waiting, is_blank, literal_json, no_constant

_STARTS: Final = ("<|python_start|>", "<|python_tag|>")
_ENDS: Final = ("<|python_end|>", "<|eom|>")
PYTHONIC_MARKERS: Final = (*_STARTS, "<|python_end|>")
_KEY: Final = re.compile(r"\w{1,256}")
_BRACKETS: Final = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}
_ENDS_OF_TEXT: Final = "'\"()[]{}"
"""Characters outside strings that tell where a value ends, apart from the comma."""


class PythonicReader(CallReader):
    """An output that begins so is a list of calls, if the first is of one of the request's functions.

    Each argument is given on when its value is complete.
    """

    def _run(self) -> Waiting:
        yield from self._space()
        calls = self._index
        yield from self._one_of(*_STARTS)
        yield from self._space()
        if (yield from self._one_of("[")):
            yield from self._list()
        if self._index == calls:
            self._pos = 0
        while True:
            self._content(self._text[self._pos :])
            self._text, self._pos = "", 0
            yield from self._wait(is_blank if self._after_call else None)

    def _list(self) -> Waiting:
        before = self._pos
        while True:
            yield from self._space()
            found = yield from self._name("(")
            if found is None or (self._index < 0 and found[0] not in self._names):
                return
            whole = yield from self._arguments(found[0])
            if not self._open:
                cut_short = self._final and self._index >= 0
                self._pos = len(self._text) if cut_short else before
                return
            if whole:
                self._close_arguments()
            self._end_call()
            yield from self._space()
            before = self._pos
            if not whole or (yield from self._one_of(",", "]")) != ",":
                break
        yield from self._space()
        yield from self._one_of(*_ENDS)

    def _arguments(self, name: str) -> Generator[None, None, bool]:
        """Those of one call, which begins with the first that is one, or without any; False: they are not what they
        should be, or not whole."""
        while True:
            yield from self._space()
            if (yield from self._one_of(")")):
                if not self._open:
                    self._begin_call(name)
                return True
            found = yield from self._until("=", ")")
            if found is None or found[1] != "=" or not _KEY.fullmatch(key := found[0].strip()):
                return False
            text = yield from self._value()
            if text is None:
                return False
            value = _as_json(text)
            if value is None:
                return False
            if not self._open:
                self._begin_call(name)
            self._write_key(key)
            self._write(value)
            self._text, self._pos = self._text[self._pos :], 0
            yield from self._one_of(",")

    def _value(self) -> Generator[None, None, str | None]:
        """The text of one value, up to the comma or bracket after it. None: the output ends before."""
        depth, quote, start = 0, "", self._pos
        while True:
            while self._pos < len(self._text):
                character = self._text[self._pos]
                if quote:
                    if character == "\\":
                        if self._pos + 1 >= len(self._text):
                            break
                        self._pos += 1
                    elif character == quote:
                        quote = ""
                elif character in "'\"":
                    quote = character
                elif depth == 0 and character in ",)":
                    return self._text[start : self._pos]
                else:
                    depth += _BRACKETS.get(character, 0)
                self._pos += 1
            if self._final:
                return None
            if self._pos < len(self._text):  # a backslash: it takes what follows
                yield from self._wait()
            else:
                yield from self._wait_for(f"{quote}\\" if quote else _ENDS_OF_TEXT if depth else f"{_ENDS_OF_TEXT},")


def _as_json(text: str) -> str | None:
    """The JSON of a Python literal, or of what is JSON already. None: it is neither."""
    if (found := literal_json(text)) is not None:
        return found
    try:
        json.loads(text.strip(), parse_constant=no_constant)
        return text.strip()
    except (ValueError, RecursionError):
        return None
