"""Cut text into pieces in any way: what reads text that comes in pieces must not care."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Protocol

from hypothesis import strategies as st

from blade_llm.text.events import Arguments, CallBegun, CallEnded, Content, Event, Reasoning, merged


class Parser(Protocol):
    def add(self, piece: str) -> list[Event]: ...

    def finish(self) -> list[Event]: ...


def parsed(parser: Parser, pieces: Sequence[str]) -> list[Event]:
    """All events of a response, joined."""
    return merged([event for piece in pieces for event in parser.add(piece)] + parser.finish())


def cut(text: str, borders: Sequence[int]) -> list[str]:
    marks = sorted({0, len(text), *(border % (len(text) + 1) for border in borders)})
    return [text[begin:end] for begin, end in pairwise(marks)]


def check_cuts(make: Callable[[], Parser], text: str, borders: Sequence[int]) -> list[Event]:
    """The events of ``text``; asserts that its pieces give the same, and that calls are well-formed."""
    whole = parsed(make(), [text])
    assert parsed(make(), list(text)) == whole
    assert parsed(make(), cut(text, borders)) == whole
    check_calls(whole)
    return whole


def check_calls(events: Sequence[Event]) -> None:
    """Calls are numbered without gaps, one is open at a time, and nothing but its arguments comes inside."""
    opened: int | None = None
    number = 0
    for event in events:
        match event:
            case CallBegun(index, name):
                assert opened is None
                assert index == number
                assert name
                opened = index
            case Arguments(index, _):
                assert index == opened
            case CallEnded(index):
                assert index == opened
                opened, number = None, number + 1
            case _:
                assert opened is None
    assert opened is None


def content(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Content))


def reasoning(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Reasoning))


def calls(events: Sequence[Event]) -> list[tuple[str, str]]:
    """(name, arguments) of every call."""
    found: list[tuple[str, str]] = []
    for event in events:
        match event:
            case CallBegun(_, name):
                found.append((name, ""))
            case Arguments(_, text):
                found[-1] = (found[-1][0], found[-1][1] + text)
    return found


BORDERS = st.lists(st.integers(0, 400), max_size=12)
