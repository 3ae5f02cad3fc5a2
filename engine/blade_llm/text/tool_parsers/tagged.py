"""Calls with tags around each argument: Qwen3-Coder's and GLM-4.5's.

Values stand as they are, without quotes, so that the function's schema has to say which of them are strings.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any, Final

from blade_llm.text.markers import partial_marker
from blade_llm.text.tool_parsers.reader import CallReader, Waiting, literal_json, no_constant

_CALL: Final = "<tool_call>"
_CALL_END: Final = "</tool_call>"
_LONGEST_KEY: Final = 1024


class _TaggedReader(CallReader):
    """What both have in common: pairs of key and value."""

    def _value(self, name: str, key: str, end: str, *, lines: bool) -> Generator[None, None, bool]:
        """Read and write a value up to ``end``; False: the output ends before.

        Args:
            lines: it stands on lines of its own: the line breaks at its ends are not part of it.
        """
        if lines:
            yield from self._one_of("\n")
        if not _is_text(self._parameters.get(name), key):
            found = yield from self._until(end)
            if found is None:
                return False
            self._write_key(key)
            self._write(_as_json(found[0].removesuffix("\n") if lines else found[0]))
            return True
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

    def _key(self, end: str) -> Generator[None, None, str | None]:
        found = yield from self._until(end)
        return None if found is None or not 0 < len(found[0]) <= _LONGEST_KEY else found[0]


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


def _is_text(schema: Any, key: str) -> bool:
    """Whether the argument can only be a string. One that the schema does not know is one."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    found = properties.get(key) if isinstance(properties, dict) else None
    if not isinstance(found, dict):
        return True
    kinds = found.get("type")
    if kinds is None:
        choices = found.get("enum") or ([found["const"]] if "const" in found else [])
        return bool(choices) and all(isinstance(choice, str) for choice in choices)
    return kinds in ("string", ["string"])


def _as_json(text: str) -> str:
    """``text`` where it is JSON, the JSON of a Python literal, else a JSON string."""
    stripped = text.strip()
    try:
        json.loads(stripped, parse_constant=no_constant)
        return stripped
    except (ValueError, RecursionError):
        pass
    return literal_json(stripped) or json.dumps(text, ensure_ascii=False)


def _quoted(text: str) -> str:
    """The inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
