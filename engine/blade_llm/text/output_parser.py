"""One output's text as events: reasoning first, then content and tool calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from blade_llm.text.events import Arguments, CallBegun, CallEnded, Content, Event
from blade_llm.text.reasoning import ReasoningForm, ThinkParser
from blade_llm.text.tokenizer import Tokenizer
from blade_llm.text.tool_parsers import CallForm
from blade_llm.text.tool_parsers.freeform import FreeformText


class CallNotes:
    """Who is notified of the calls of a request's outputs, where anybody is."""

    note: Callable[[str], None] | None = None
    """Called with the name of each function that is called, when that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputParsing:
    """How the outputs for one prompt are parsed."""

    calls: CallForm | None = None
    """None: calls are not parsed."""
    names: frozenset[str] = frozenset()
    """The functions that may be called."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Function → JSON Schema of its parameters."""
    freeform: frozenset[str] = frozenset()
    """Those that take a text: the arguments of their calls are given out as that text."""
    named: bool = False
    """The one call there is was named in the request, not chosen by the model."""
    forced: bool = False
    """Outputs are calls and nothing else, behind their reasoning: what is left of one that was cut short is none."""
    reasoning: ReasoningForm | None = None
    inside: bool = False
    """Outputs begin in the middle of the reasoning."""
    called: CallNotes = field(default_factory=CallNotes)
    """Who is notified of calls."""

    def finish_reason(self, reason: str | None, num_calls: int) -> str | None:
        """OpenAI's: ``tool_calls`` where the model chose to call; one named in the request ends with ``stop``."""
        return "tool_calls" if reason == "stop" and num_calls and not self.named else reason

    def parser(self) -> OutputParser:
        """A fresh one, for one output."""
        return OutputParser(self)

    def shown_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Special tokens that have to stay in the text for the parser to see them."""
        markers = [*(self.calls.markers if self.calls else ()), *(self.reasoning.markers if self.reasoning else ())]
        return tokenizer.special_ids.intersection(tokenizer.added_ids.get(marker, -1) for marker in markers)

    def reasoning_counter(self, tokenizer: Tokenizer) -> ReasoningCounter | None:
        """Counts the reasoning tokens of one output; None: there is no reasoning to count."""
        if self.reasoning is None:
            return None
        return ReasoningCounter(ThinkParser(self.reasoning, inside=self.inside), tokenizer.token_bytes)


class OutputParser:
    """Text in, events out, for one output. The outcome does not depend on how the text is cut into pieces."""

    def __init__(self, parsing: OutputParsing) -> None:
        self._think = ThinkParser(parsing.reasoning, inside=parsing.inside) if parsing.reasoning else None
        self._calls = parsing.calls.parser(parsing.names, parsing.parameters) if parsing.calls else None
        self._forced = parsing.forced
        self._freeform = parsing.freeform
        self._called = parsing.called
        self._texts: dict[int, FreeformText] = {}
        """Calls of freeform tools that have not ended."""

    def add(self, piece: str) -> list[Event]:
        """What ``piece`` brings; perhaps nothing, while it may be part of a marker."""
        if self._think is None:
            return self._content(piece)
        return self._after_reasoning(self._think.add(piece))

    def finish(self) -> list[Event]:
        """What was held back, now that nothing more comes."""
        events = self._after_reasoning(self._think.finish()) if self._think else []
        if self._calls is not None:
            events += self._noted(self._with_texts(self._calls.finish()))
        for index, text in self._texts.items():
            events.append(Arguments(index, text.finish()))
        return [event for event in events if not isinstance(event, Content)] if self._forced else events

    def _after_reasoning(self, events: list[Event]) -> list[Event]:
        found: list[Event] = []
        for event in events:
            found += self._content(event.text) if isinstance(event, Content) else [event]
        return found

    def _content(self, text: str) -> list[Event]:
        if self._calls is not None:
            return self._noted(self._with_texts(self._calls.add(text)))
        return [Content(text)] if text else []

    def _noted(self, events: list[Event]) -> list[Event]:
        if self._called.note is not None:
            for event in events:
                if isinstance(event, CallBegun):
                    self._called.note(event.name)
        return events

    def _with_texts(self, events: list[Event]) -> list[Event]:
        """The same, the arguments of freeform tools as the text that they hold."""
        if not self._freeform:
            return events
        found: list[Event] = []
        for event in events:
            match event:
                case CallBegun(index, name) if name in self._freeform:
                    self._texts[index] = FreeformText()
                case Arguments(index, text) if index in self._texts:
                    event = Arguments(index, self._texts[index].add(text))
                case CallEnded(index) if index in self._texts:
                    found.append(Arguments(index, self._texts.pop(index).finish()))
            found.append(event)
        return found


class ReasoningCounter:
    """Counts the tokens of one output up to the end of its reasoning, whatever the pieces their text comes in."""

    def __init__(self, parser: ThinkParser, token_bytes: Callable[[int], bytes]) -> None:
        self._parser = parser
        self._token_bytes = token_bytes
        self._num_tokens = 0

    @property
    def count(self) -> int:
        """Tokens of reasoning so far, those of its markers included."""
        return self._num_tokens if self._parser.thinks else 0

    def add(self, token_ids: Sequence[int]) -> None:
        """Take the output's next tokens."""
        for token_id in token_ids:
            if self._parser.ended:
                return
            self._parser.add(self._token_bytes(token_id).decode("latin-1"))  # markers are ASCII
            self._num_tokens += 1
