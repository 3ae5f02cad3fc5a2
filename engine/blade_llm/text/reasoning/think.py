"""Reasoning between two markers at the beginning of an output, separated from the content after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from blade_llm.text.events import Content, Event, Reasoning
from blade_llm.text.markers import WHITESPACE, HeldText, settled


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningForm:
    """How a model family thinks."""

    name: str
    """What ``--reasoning_parser`` calls it."""
    begin: str = "<think>"
    end: str = "</think>"
    before: str = ""
    """What may stand before the beginning, as some models write it."""
    gap: str = "\n\n"
    """Between the end and the content, as the model is taught to write it."""
    always: bool = False
    """Outputs begin inside, also where neither prompt nor output says so."""
    opened: bool = False
    """Only prompts that end with ``begin`` have outputs that think."""

    def opened_by(self, thinking: str, plain: str) -> bool:
        """Whether prompts say by ``begin`` at their end that the output is to think, and by nothing that it is not.

        Args:
            thinking: a prompt whose output is to think.
            plain: the same prompt where it is not.
        """
        return self.begins_inside(thinking) and not any(marker in plain for marker in self.markers)

    @property
    def markers(self) -> tuple[str, str]:
        """Texts that the parser has to see even where they are special tokens."""
        return self.begin, self.end

    def begins_inside(self, prompt: str, generated: str = "") -> bool:
        """Whether the output for ``prompt`` continues in the middle of the reasoning.

        Args:
            generated: the end of the prompt that belongs to the output already.
        """
        if self.begin in generated or self.end in generated:
            return generated.rfind(self.begin) > generated.rfind(self.end)
        text = prompt.rstrip(WHITESPACE).removesuffix(generated.rstrip(WHITESPACE)).rstrip(WHITESPACE)
        return text.endswith(self.begin) or (self.always and not text.endswith(self.end))


class ThinkParser:
    """Parses one output. The outcome does not depend on how the text is cut into pieces.

    Whitespace at both ends of the reasoning and before the content is dropped. An output that is cut short before
    the second marker is all reasoning.

    Args:
        form: the markers.
        inside: the output begins in the middle of the reasoning (it may repeat the first marker).
    """

    def __init__(self, form: ReasoningForm, *, inside: bool) -> None:
        self._begin, self._end = form.markers
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
        if len(found) < len(self._begin) and self._begin.startswith(found):
            self._held.hold(text)
            return ""
        self.thinks = self._inside or found.startswith(self._begin)
        self._state = "reasoning" if self.thinks else "content"
        return found.removeprefix(self._begin) if self.thinks else text

    def _reasoning(self, text: str, events: list[Event]) -> str:
        end = text.find(self._end)
        given = len(text[:end].rstrip(WHITESPACE)) if end >= 0 else settled(text, self._end)
        self._give(text[:given], events)
        if end < 0:
            self._held.hold(text[given:])
            return ""
        self._state = "gap"
        return text[end + len(self._end) :]

    def _give(self, text: str, events: list[Event]) -> None:
        if not self._begun:
            text = text.lstrip(WHITESPACE)
        if text:
            self._begun = True
            events.append(Reasoning(text))
