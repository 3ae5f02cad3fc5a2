"""Calls with tags around each argument: Qwen3-Coder's and GLM-4.5's.

Values stand as they are, without quotes, so that the function's schema has to say which of them are strings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from typing import Final

from blade_llm.text.markers import WHITESPACE, partial_marker
from blade_llm.text.tool_parsers.argument_schemas import argument_schema, kinds
from blade_llm.text.tool_parsers.json_value import JsonValue
from blade_llm.text.tool_parsers.reader import CallReader, Waiting, literal_json, no_constant

_CALL: Final = "<tool_call>"
_CALL_END: Final = "</tool_call>"
LONGEST_KEY: Final = 1024
NULLS: Final = ("null", "None")
"""Where an argument may be text or null, these are null; all else is text as it stands."""
_TEXT: Final = frozenset({"string"})
_TEXT_OR_NULL: Final = frozenset({"string", "null"})
_STRING_END: Final = re.compile(r'(?:[^"\\\n]|\\.)*"')


class _TaggedReader(CallReader):
    """What both have in common: pairs of key and value."""

    def _value(self, name: str, key: str, end: str, *, lines: bool) -> Generator[None, None, bool]:
        """Read and write a value up to ``end``; False: the output ends before.

        Args:
            lines: it stands on lines of its own: the line breaks at its ends are not part of it.
        """
        if lines:
            yield from self._one_of("\n")
        parameters = self._parameters.get(name)
        schema = argument_schema(parameters, key)
        found = _TEXT if schema is None else kinds(schema, parameters)
        if found == _TEXT:
            return (yield from self._text_value(key, end, lines=lines))
        text = yield from self._whole_value(end)
        if text is None:
            return False
        self._write_key(key)
        text = text.removesuffix("\n") if lines else text
        if found == _TEXT_OR_NULL:
            self._write("null" if text.strip(WHITESPACE) in NULLS else json.dumps(text, ensure_ascii=False))
        else:
            self._write(_as_json(text))
        return True

    def _text_value(self, key: str, end: str, *, lines: bool) -> Generator[None, None, bool]:
        """A string, given on as it comes."""
        self._write_key(key)
        self._write('"')
        stop = f"\n{end}" if lines else end
        while True:
            text = self._text[self._pos :]
            at, length = text.find(stop), len(stop)
            if lines and (plain := text.find(end)) >= 0 and (at < 0 or plain < at):
                at, length = plain, len(end)
            if at >= 0:
                self._write(_quoted(text[:at]) + '"')
                self._text, self._pos = text[at + length :], 0
                return True
            held = max(partial_marker(text, stop), partial_marker(text, end))
            self._write(_quoted(text[: len(text) - held]))
            self._text, self._pos = text[len(text) - held :], 0
            if self._final:
                self._text = ""  # cut short in the middle of the tag
                return False
            yield from self._wait()

    def _whole_value(self, end: str) -> Generator[None, None, str | None]:
        """The text before the first ``end``, or before a later one where JSON ends there that holds it in a string.
        None: the output ends before."""
        start = self._pos
        found = yield from self._until(end)
        if found is None:
            return None
        first, after_first = found[0], self._pos
        while (yield from self._in_string(start, end)):
            if (yield from self._until(end)) is None:
                break
            text = self._text[start : self._pos - len(end)]
            if _is_json(text):
                return text
        self._pos = after_first
        return first

    def _in_string(self, start: int, end: str) -> Generator[None, None, bool]:
        """Whether the ``end`` that was read last stands in a string of JSON, which is closed on the same line."""
        at = self._pos - len(end)
        value = JsonValue()
        value.add(self._text[start:at].lstrip(WHITESPACE), 0)
        if not value.in_string:
            return False
        while True:
            if _STRING_END.match(self._text, at):
                return True
            if self._final or "\n" in self._text[at:]:
                return False
            yield from self._wait_for('"\n')

    def _key(self, end: str) -> Generator[None, None, str | None]:
        found = yield from self._until(end)
        return None if found is None or not 0 < len(found[0]) <= LONGEST_KEY else found[0]


class Qwen3CoderReader(_TaggedReader):
    """``<tool_call> <function=NAME> <parameter=KEY> VALUE </parameter> </function> </tool_call>``, each on a line."""

    begins = (_CALL, "<function=")

    def _calls(self) -> Waiting:
        marked = yield from self._one_of(_CALL)
        yield from self._space()
        if not (yield from self._one_of("<function=")):
            return
        found = yield from self._name(">")
        if found is None or (not marked and found[0] not in self._names):
            return
        name = found[0]
        self._begin_call(name)
        while True:
            yield from self._space()
            match (yield from self._one_of("<parameter=", "</function>", _CALL_END)):
                case "<parameter=":
                    key = yield from self._key(">")
                    if key is None or not (yield from self._value(name, key, "</parameter>", lines=True)):
                        break
                case "" if self._final:
                    break
                case other:
                    self._close_arguments()
                    self._end_call()
                    if other != _CALL_END:
                        yield from self._space()
                        yield from self._one_of(_CALL_END)
                    return
        self._end_call()


class Glm45Reader(_TaggedReader):
    """``<tool_call>NAME <arg_key>KEY</arg_key> <arg_value>VALUE</arg_value> </tool_call>``."""

    begins = (_CALL,)

    def _calls(self) -> Waiting:
        yield from self._one_of(_CALL)
        yield from self._space()
        found = yield from self._name("<arg_key>", _CALL_END, "\n")
        if found is None or (found[1] == "\n" and found[0] not in self._names):
            return
        name, ended = found
        self._begin_call(name)
        while True:
            if ended not in ("<arg_key>", _CALL_END):
                yield from self._space()
                ended = yield from self._one_of("<arg_key>", _CALL_END)
            if ended != "<arg_key>":
                break
            ended = ""
            key = yield from self._key("</arg_key>")
            yield from self._space()
            if key is None or not (yield from self._one_of("<arg_value>")):
                self._end_call()
                return
            if not (yield from self._value(name, key, "</arg_value>", lines=False)):
                self._end_call()
                return
        if ended or not self._final:
            self._close_arguments()
        self._end_call()


def _as_json(text: str) -> str:
    """``text`` where it is JSON, the JSON of a Python literal, else a JSON string."""
    stripped = text.strip()
    if _is_json(stripped):
        return stripped
    return literal_json(stripped) or json.dumps(text, ensure_ascii=False)


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=no_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _quoted(text: str) -> str:
    """The inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
