"""The ``content`` of a message as it grows: updates of a choice in, blocks and their events out."""

from __future__ import annotations

from typing import Any

from blade_llm.api.generation.result import ChoiceUpdate, GenerationResult
from blade_llm.api.messages.blocks import Block, Event, TextBlock, ThinkingBlock, ToolUseBlock
from blade_llm.api.messages.requests import Thinking
from blade_llm.api.tools.serializer import CallIds
from blade_llm.text.events import Arguments, CallBegun, CallEnded, Content, Reasoning, merged
from blade_llm.text.events import Event as Found
from blade_llm.text.output_parser import OutputParser


class Output:
    """One message's blocks.

    Args:
        thinking: what the request says of it; None: blocks of thinking are left out.
        ends_context: the limit of the output is that of the context, not ``max_tokens``.
    """

    def __init__(
        self,
        parser: OutputParser,
        *,
        thinking: Thinking | None,
        call_ids: CallIds | None = None,
        ends_context: bool = False,
    ) -> None:
        self._parser = parser
        self._thinking = thinking
        self._call_ids = call_ids or CallIds()
        self._ends_context = ends_context
        self._open: Block | None = None
        self._calls = 0
        self.content: list[dict[str, Any]] = []
        """All blocks that are done."""
        self.stop_reason: str | None = None
        """Set with the last update."""
        self.stop_sequence: str | None = None

    def add(self, update: ChoiceUpdate) -> list[Event]:
        """Take an update; the last one, which has a finish reason, ends the last block."""
        events = self._take(self._parser.add(update.text))
        if update.finish_reason is not None:
            events += self._take(self._parser.finish())
            if self._open is None and not self.content:  # clients read the first block's text
                events += self._begin(TextBlock())
            events += self._end()
            self._stop(update)
        return events

    def _stop(self, update: ChoiceUpdate) -> None:
        if update.finish_reason == "length":
            self.stop_reason = "model_context_window_exceeded" if self._ends_context else "max_tokens"
        elif isinstance(update.stop_reason, str):
            self.stop_reason, self.stop_sequence = "stop_sequence", update.stop_reason
        else:
            self.stop_reason = "tool_use" if self._calls else "end_turn"

    def _take(self, found: list[Found]) -> list[Event]:
        return [event for one in merged(found) for event in self._add(one)]

    def _add(self, found: Found) -> list[Event]:
        match found:
            case CallBegun(index, name):
                self._calls += 1
                call_id = self._call_ids.id_of(0, index).replace("call_", "toolu_", 1)
                return self._end() + self._begin(ToolUseBlock(call_id, name))
            case CallEnded():
                return self._end()
            case Reasoning(text):
                if self._thinking is None:
                    return []
                kind: type[Block] = ThinkingBlock
            case Content(text):
                kind = TextBlock
            case Arguments(_, text):
                kind = ToolUseBlock
        events: list[Event] = []
        if not isinstance(self._open, kind):
            omitted = self._thinking is not None and self._thinking.display == "omitted"
            block = ThinkingBlock(omitted=omitted) if kind is ThinkingBlock else TextBlock()
            events = self._end() + self._begin(block)
        assert self._open is not None
        return events + self._delta(self._open.grow(text))

    def _begin(self, block: Block) -> list[Event]:
        self._open = block
        start = {"type": "content_block_start", "index": len(self.content), "content_block": block.begun()}
        return [start] if self.content else [start, {"type": "ping"}]

    def _delta(self, delta: Event | None) -> list[Event]:
        if delta is None:
            return []
        return [{"type": "content_block_delta", "index": len(self.content), "delta": delta}]

    def _end(self) -> list[Event]:
        if self._open is None:
            return []
        block, self._open = self._open, None
        events = [*self._delta(block.last_delta()), {"type": "content_block_stop", "index": len(self.content)}]
        self.content.append(block.body())
        return events


class Envelope:
    """The message around its content."""

    def __init__(self, message_id: str, model: str) -> None:
        self._head = {"id": message_id, "type": "message", "role": "assistant", "model": model}

    def begun(self, result: GenerationResult) -> dict[str, Any]:
        """Before there is content."""
        return {**self._head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage_of(result)}

    def ended(self, output: Output, result: GenerationResult) -> dict[str, Any]:
        """All of it."""
        stop = {"stop_reason": output.stop_reason, "stop_sequence": output.stop_sequence}
        return {**self._head, "content": output.content, **stop, "usage": usage_of(result)}


def usage_of(result: GenerationResult) -> dict[str, Any]:
    """A chat's usage in the words of a message: the prompt's tokens are those from the cache and the others."""
    usage: dict[str, Any] = result.usage()
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    thought = usage.get("completion_tokens_details", {}).get("reasoning_tokens")
    return {
        "input_tokens": usage["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage["completion_tokens"],
        **({} if thought is None else {"output_tokens_details": {"thinking_tokens": thought}}),
        "service_tier": "standard",
    }
