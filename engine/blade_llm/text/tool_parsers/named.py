"""Calls that are a name and a JSON object of arguments between markers: DeepSeek's and Mistral's."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from blade_llm.text.tool_parsers.call_object import CallObject
from blade_llm.text.tool_parsers.reader import CallReader, Waiting

_CALLS: Final = "<\uff5ctool\u2581calls\u2581begin\uff5c>"
_CALLS_END: Final = "<\uff5ctool\u2581calls\u2581end\uff5c>"
_CALL: Final = "<\uff5ctool\u2581call\u2581begin\uff5c>"
_CALL_END: Final = "<\uff5ctool\u2581call\u2581end\uff5c>"
_SEPARATOR: Final = "<\uff5ctool\u2581sep\uff5c>"
DEEPSEEK_MARKERS: Final = (_CALLS, _CALLS_END, _CALL, _CALL_END, _SEPARATOR)

_TOOL_CALLS: Final = "[TOOL_CALLS]"
MISTRAL_MARKERS: Final = (_TOOL_CALLS, "[CALL_ID]", "[ARGS]")

_LONGEST_ID: Final = 64
"""Characters of a call's id."""


class DeepSeekReader(CallReader):
    """Between markers of its own ``NAME`` and the object (V3.1), or ``function``, ``NAME`` and the object in a block
    of code (V3, R1)."""

    begins = (_CALLS, _CALL)

    def _calls(self) -> Waiting:
        if (yield from self._one_of(_CALLS)):
            yield from self._space()
        while True:
            before = self._pos
            if not (yield from self._one_of(_CALL)):
                break
            found = yield from self._name(_SEPARATOR)
            if found is not None and found[0] == "function":
                found = yield from self._name("\n")
                yield from self._space()
                yield from self._one_of("```json")
            yield from self._space()
            if found is None or self._text[self._pos : self._pos + 1] != "{":
                self._pos = before
                return
            self._begin_call(found[0])
            yield from self._json()
            yield from self._space()
            yield from self._one_of("```")
            yield from self._space()
            yield from self._one_of(_CALL_END)
            self._end_call()
            yield from self._space()
        yield from self._one_of(_CALLS_END)


class MistralReader(CallReader):
    """``[TOOL_CALLS]`` and a list of objects with name and arguments; or, of newer models, each call as
    ``[TOOL_CALLS]NAME[ARGS]{…}``."""

    begins = (_TOOL_CALLS,)

    def _calls(self) -> Waiting:
        yield from self._one_of(_TOOL_CALLS)
        yield from self._space()
        if opened := (yield from self._one_of("[", "{")):
            self._pos -= opened == "{"
            before = self._pos
            while (yield from self._object()):
                yield from self._space()
                before = self._pos
                if (yield from self._one_of(",", "]")) != ",":
                    return
            self._pos = before
            return
        found = yield from self._name("[ARGS]", "[CALL_ID]", "{")
        if found is None:
            return
        name, ended = found
        if ended == "[CALL_ID]" and (yield from self._until("[ARGS]", most=_LONGEST_ID)) is None:
            return
        self._pos -= ended == "{"
        yield from self._space()
        if self._text[self._pos : self._pos + 1] != "{":
            return
        self._begin_call(name)
        yield from self._json()
        self._end_call()

    def _object(self) -> Generator[None, None, bool]:
        """One object of the list; whether it was a call."""
        yield from self._space()
        call = CallObject(self._index + 1)
        read = [self._text[: self._pos]]
        """What it was made of, in pieces, should it be no call."""
        self._text, self._pos = self._text[self._pos :], 0
        while not (call.done or call.broken):
            end = call.add(self._text, 0, self._events)
            read.append(self._text[:end])
            self._text = self._text[end:]
            if call.begun and not self._open:
                self._open = True
                self._index += 1
            if self._final and not call.done:
                call.finish(self._events)
            elif not (call.done or call.broken):
                yield from self._wait()
        self._open, self._after_call = False, self._after_call or call.begun
        if not call.begun:
            before = "".join(read)
            self._text, self._pos = before + self._text, len(before)
        return call.begun
