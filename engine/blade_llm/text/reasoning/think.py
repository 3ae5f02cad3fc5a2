"""Reasoning between ``<think>`` and ``</think>`` at the beginning of an output, separated from the content after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from blade_llm.text.events import Content, Event, Reasoning
from blade_llm.text.markers import WHITESPACE, HeldText, settled

BEGIN: Final = "<think>"
END: Final = "</think>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningForm:
    """How a model family thinks."""

    name: str
    """What ``--reasoning_parser`` calls it."""
    always: bool = False
    """Outputs begin inside, also where neither prompt nor output says so."""

    @property
    def markers(self) -> tuple[str, str]:
        """Texts that the parser has to see even where they are special tokens."""
        return BEGIN, END

    def begins_inside(self, prompt: str, generated: str = "") -> bool:
        """Whether the output for ``prompt`` continues in the middle of the reasoning.

        Args:
            generated: the end of the prompt that belongs to the output already.
        """
        if BEGIN in generated or END in generated:
            return generated.rfind(BEGIN) > generated.rfind(END)
        end = prompt.rstrip(WHITESPACE).removesuffix(generated.rstrip(WHITESPACE)).rstrip(WHITESPACE)
        return end.endswith(BEGIN) or (self.always and not end.endswith(END))


class ThinkParser:
    """Parses one output. The outcome does not depend on how the text is cut into pieces.

    Whitespace at both ends of the reasoning and before the content is dropped. An output that is cut short before
    ``</think>`` is all reasoning.

    Args:
        inside: the output begins in the middle of the reasoning (it may repeat ``<think>``).
    """

    def __init__(self, *, inside: bool) -> None:
        self._inside = inside
        self._state: Literal["start", "reasoning", "gap", "content"] = "start"
        self._held = HeldText()
        self._begun = False
        """Some reasoning was given out."""
        self.thinks = False
        """There is reasoning, or at least its beginning."""

    @property
    def ended(self) -> bool:
        """There is no reasoning, or no more."""
        return self._state in ("gap", "content")

    def add(self, piece: str) -> list[Event]:
        """What ``piece`` brings."""
        if self._state == "content":
            return [Content(piece)] if piece else []
        if self._state != "gap" and self._held.keeps(piece):
            return []
        text = self._held.take() + piece
        events: list[Event] = []
        if self._state == "start":
            text = self._start(text)
        if self._state == "reasoning":
            text = self._reasoning(text, events)
        if self._state == "gap":
            text = text.lstrip(WHITESPACE)
            if text:
                self._state = "content"
        if self._state == "content" and text:
            events.append(Content(text))
        return events

    def finish(self) -> list[Event]:
        """What was held back, now that nothing more comes."""
        held = self._held.take()
        if not held:
            return []
        if self._state == "start" and not self._inside:
            return [Content(held)]
        return [Reasoning(held)] if held.strip(WHITESPACE) else []

    def _start(self, text: str) -> str:
        found = text.lstrip(WHITESPACE)
        if len(found) < len(BEGIN) and BEGIN.startswith(found):
            self._held.hold(text)
            return ""
        self.thinks = self._inside or found.startswith(BEGIN)
        self._state = "reasoning" if self.thinks else "content"
        return found.removeprefix(BEGIN) if self.thinks else text

    def _reasoning(self, text: str, events: list[Event]) -> str:
        end = text.find(END)
        given = len(text[:end].rstrip(WHITESPACE)) if end >= 0 else settled(text, END)
        self._give(text[:given], events)
        if end < 0:
            self._held.hold(text[given:])
            return ""
        self._state = "gap"
        return text[end + len(END) :]

    def _give(self, text: str, events: list[Event]) -> None:
        if not self._begun:
            text = text.lstrip(WHITESPACE)
        if text:
            self._begun = True
            events.append(Reasoning(text))
