"""What an answer's text turns out to be, piece by piece: text for the user, reasoning, calls of functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Text(NamedTuple):
    """Text for the user."""

    text: str


class Reasoning(NamedTuple):
    """Text the model thinks."""

    text: str


class CallStart(NamedTuple):
    """The model begins to call a function; its arguments follow."""

    call_id: str
    name: str


class CallArguments(NamedTuple):
    """More of the arguments of the call that began last: a part of a JSON text."""

    text: str


Part = Text | Reasoning | CallStart | CallArguments


class Splitter(Protocol):
    """Tells the parts of one answer's text."""

    @property
    def reasoning(self) -> bool:
        """The text so far ends inside reasoning."""

    def add(self, text: str, *, last: bool) -> Sequence[Part]:
        """The parts that ``text`` completes. ``last``: no more text comes."""


class PlainText:
    """Of a model without tools and reasoning."""

    reasoning = False

    def add(self, text: str, *, last: bool) -> Sequence[Part]:
        return (Text(text),) if text else ()
