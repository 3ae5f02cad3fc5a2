"""What an output's text turns out to be: content, reasoning, tool calls. Parsers make them, routes write them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """More text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model thought before its content."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """The model calls a tool. ``index`` numbers the calls of one output from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of a call's arguments: joined they are the JSON the model wrote, character by character."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """Nothing more belongs to the call; its arguments are incomplete where the output was cut short."""

    index: int


Event = Content | Reasoning | CallBegun | Arguments | CallEnded


def merged(events: Iterable[Event]) -> list[Event]:
    """The same with neighbouring texts of one kind joined, and without empty ones."""
    found: list[Event] = []
    for event in events:
        joined = _joined(found[-1], event) if found else None
        if joined is not None:
            found[-1] = joined
        elif not isinstance(event, (Content, Reasoning, Arguments)) or event.text:
            found.append(event)
    return found


def _joined(first: Event, second: Event) -> Event | None:
    """Both as one; None where they are not of one kind."""
    match first, second:
        case Content(text), Content(more):
            return Content(text + more)
        case Reasoning(text), Reasoning(more):
            return Reasoning(text + more)
        case Arguments(index, text), Arguments(same, more) if index == same:
            return Arguments(index, text + more)
    return None
