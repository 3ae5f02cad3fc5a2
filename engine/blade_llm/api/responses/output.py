"""The ``output`` of a response as it grows: updates of a choice in, items and their events out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from blade_llm.api.generation.logprobs import TokenNames, chat_logprobs
from blade_llm.api.generation.result import ChoiceUpdate
from blade_llm.api.responses.items import (
    CustomToolCall,
    Event,
    FunctionCall,
    Item,
    Logprobs,
    Message,
    ReasoningItem,
    Status,
)
from blade_llm.api.tools.serializer import CallIds
from blade_llm.text.events import CallBegun, CallEnded, Content, Reasoning, merged
from blade_llm.text.events import Event as Found
from blade_llm.text.output_parser import OutputParser
from blade_llm.text.tokenizer import Tokenizer


class Output:
    """One response's items.

    Args:
        number: what their ids are made of.
        freeform: names of the tools that take a text.
        namespaces: name of a function as the model knows it → namespace, and name in that.
    """

    def __init__(
        self,
        number: str,
        parser: OutputParser,
        tokenizer: Tokenizer,
        *,
        with_logprobs: bool,
        call_ids: CallIds | None = None,
        freeform: Collection[str] = (),
        namespaces: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        self._number = number
        self._freeform = freeform
        self._namespaces = namespaces or {}
        self._call_ids = call_ids or CallIds()
        self._parser = parser
        self._names = TokenNames(tokenizer)
        self._with_logprobs = with_logprobs
        self._logprobs: Logprobs = []
        """Log-probabilities of tokens whose text is still held back."""
        self._open: Item | None = None
        self.items: list[dict[str, Any]] = []
        """All that are done."""
        self.finish_reason: str | None = None

    def add(self, update: ChoiceUpdate) -> list[Event]:
        """Take an update; the last one, which has a finish reason, ends the last item."""
        self.finish_reason = update.finish_reason
        if self._with_logprobs:
            self._logprobs += chat_logprobs(update.entries, self._names)["content"]
        events = self._take(self._parser.add(update.text))
        if update.finish_reason is not None:
            # A call that ends only now may have been cut short.
            events += self._take([one for one in self._parser.finish() if not isinstance(one, CallEnded)])
            events += self._finish("incomplete" if update.finish_reason == "length" else "completed")
        return events

    def _take(self, found: list[Found]) -> list[Event]:
        events: list[Event] = []
        for one in merged(found):
            logprobs, self._logprobs = self._logprobs, []
            events += self._add(one, logprobs)
        return events

    def _add(self, found: Found, logprobs: Logprobs) -> list[Event]:
        events: list[Event] = []
        match found:
            case CallBegun(index, name):
                events = self._end("completed")
                kind = CustomToolCall if name in self._freeform else FunctionCall
                space, short = self._namespaces.get(name, ("", name))
                call = kind(self._id(), len(self.items), self._call_ids.id_of(0, index), short, space)
                return events + self._begin(call)
            case CallEnded():
                return self._end("completed")
            case Content() if not isinstance(self._open, Message):
                if self._open is not None or self.items:
                    logprobs = _of_text(found.text, logprobs)
                events = self._end("completed")
                events += self._begin(Message(self._id(), len(self.items)))
            case Reasoning() if not isinstance(self._open, ReasoningItem):
                events = self._end("completed")
                events += self._begin(ReasoningItem(self._id(), len(self.items)))
        assert self._open is not None
        return [*events, self._open.grow(found.text, logprobs)]

    def _finish(self, status: Status) -> list[Event]:
        events: list[Event] = []
        if self._open is None and not self.items:  # an empty output is a message too
            events = self._begin(Message(self._id(), 0))
        return events + self._end(status)

    def _begin(self, item: Item) -> list[Event]:
        self._open = item
        body = item.body("in_progress")
        return [{"type": "response.output_item.added", "output_index": len(self.items), "item": body}, *item.opened()]

    def _end(self, status: Status) -> list[Event]:
        if self._open is None:
            return []
        item, self._open = self._open, None
        events, body = item.closed(), item.body(status)
        events.append({"type": "response.output_item.done", "output_index": len(self.items), "item": body})
        self.items.append(body)
        return events

    def _id(self) -> str:
        return f"{self._number}_{len(self.items)}"


def _of_text(text: str, logprobs: Logprobs) -> Logprobs:
    """The last tokens, those that make ``text``: before them stands the end of the reasoning or of a call."""
    missing, first = len(text.encode()), len(logprobs)
    while missing > 0 and first > 0:
        first -= 1
        missing -= len(logprobs[first]["bytes"])
    return logprobs[first:]
