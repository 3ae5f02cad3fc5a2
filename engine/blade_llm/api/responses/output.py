"""The ``output`` of a response as it grows: pieces of an answer in, items and their events out."""

from __future__ import annotations

from typing import Any

from blade_llm.api.answers import Piece
from blade_llm.api.logprobs import chat_logprobs
from blade_llm.api.responses.items import Event, FunctionCall, Item, Logprobs, Message, ReasoningItem, Status
from blade_llm.api.responses.parts import CallStart, Part, Reasoning, Splitter, Text
from blade_llm.text.tokenizer import Tokenizer


class Output:
    """One response's items. ``number``: what their ids are made of."""

    def __init__(self, number: str, splitter: Splitter, tokenizer: Tokenizer, *, with_logprobs: bool) -> None:
        self._number = number
        self._splitter = splitter
        self._tokenizer = tokenizer
        self._with_logprobs = with_logprobs
        self._open: Item | None = None
        self._num_tokens = 0
        self.items: list[dict[str, Any]] = []
        """All that are done."""
        self.reasoning_tokens = 0
        self.finish_reason: str | None = None

    def add(self, piece: Piece, num_tokens: int) -> list[Event]:
        """Take what the answer gained; the last piece, which has a finish reason, ends the last item.

        ``num_tokens``: of the answer so far. A token that ends the reasoning counts as one of it.
        """
        thought = self._splitter.reasoning
        self.finish_reason = piece.finish_reason
        parts = self._splitter.add(piece.text, last=piece.finish_reason is not None)
        if thought or self._splitter.reasoning:
            self.reasoning_tokens += num_tokens - self._num_tokens
        self._num_tokens = num_tokens
        logprobs: Logprobs = []
        if self._with_logprobs and not thought:
            logprobs = chat_logprobs(piece.entries, self._tokenizer)["content"]
        events: list[Event] = []
        for part in parts:
            events += self._add(part, logprobs)
            if isinstance(part, Text):
                logprobs = []
        if piece.finish_reason is not None:
            events += self._finish(piece.finish_reason)
        return events

    def _finish(self, reason: str) -> list[Event]:
        events: list[Event] = []
        if self._open is None and not self.items:  # an answer without a word is a message too
            events = self._begin(Message(self._id(), 0))
        return events + self._end("incomplete" if reason == "length" else "completed")

    def _add(self, part: Part, logprobs: Logprobs) -> list[Event]:
        events: list[Event] = []
        match part:
            case CallStart(call_id, name):
                events = self._end("completed")
                return events + self._begin(FunctionCall(self._id(), len(self.items), call_id, name))
            case Text() if not isinstance(self._open, Message):
                events = self._end("completed")
                events += self._begin(Message(self._id(), len(self.items)))
            case Reasoning() if not isinstance(self._open, ReasoningItem):
                events = self._end("completed")
                events += self._begin(ReasoningItem(self._id(), len(self.items)))
        assert self._open is not None
        return [*events, self._open.grow(part.text, logprobs)]

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
