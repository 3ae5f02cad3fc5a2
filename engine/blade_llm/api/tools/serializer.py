"""Chat completions with reasoning and tool calls: text through a parser, events as OpenAI writes them."""

from __future__ import annotations

import hashlib
import secrets
from typing import Any, Final, Protocol

from blade_llm.api.generation.generate import ResponseSerializer, encode, event
from blade_llm.api.generation.result import ChoiceUpdate, PromptLogprobs, TokenEntry
from blade_llm.text.events import Arguments, CallBegun, CallEnded, Content, Event, Reasoning, merged
from blade_llm.text.output_parser import OutputParser, OutputParsing

_AFTER_DELTA: Final = b',"logprobs":null,"finish_reason":null}]}\n\n'


class ChatResponseSerializer(ResponseSerializer, Protocol):
    """Writes outputs that are all content."""

    @property
    def echo(self) -> str:
        """What content begins with."""

    def opening(self, index: int, content: str | None) -> bytes:
        """The event that says the role, and with it ``content`` and what is said once; then the echo."""


class CallIds:
    """The ids of one response's calls. The response's own id may be the client's choice, and the same in every turn of
    a conversation, where the ids of calls must all differ.

    Args:
        response: different for each, and the same wherever it is made; random when left out.
    """

    def __init__(self, response: str | None = None) -> None:
        self._response = response or secrets.token_hex(16)

    def id_of(self, choice: int, index: int) -> str:
        """The id of a choice's call, the same at every call."""
        return f"call_{hashlib.sha256(f'{self._response}/{choice}/{index}'.encode()).hexdigest()[:24]}"


class ParsedChatSerializer:
    """Writes outputs that ``parsing`` parses; what they have in common with others, ``plain`` writes."""

    def __init__(
        self,
        plain: ChatResponseSerializer,
        parsing: OutputParsing,
        *,
        include_reasoning: bool = True,
        call_ids: CallIds | None = None,
    ) -> None:
        self._plain = plain
        self._parsing = parsing
        self._include_reasoning = include_reasoning
        self._streams: dict[int, _Stream] = {}
        self._call_ids = call_ids or CallIds()
        self._chunk_head = {**plain.head(), "object": "chat.completion.chunk"}
        self._before_index = b"data: " + encode(self._chunk_head)[:-1] + b',"choices":[{"index":'

    def head(self) -> dict[str, Any]:
        return self._plain.head()

    def object_name(self) -> str:
        return self._plain.object_name()

    @property
    def prompt_logprobs(self) -> dict[int, PromptLogprobs]:
        return self._plain.prompt_logprobs

    def extra_fields(self) -> dict[str, Any]:
        return self._plain.extra_fields()

    def usage_chunk(self, usage: dict[str, object]) -> bytes:
        return self._plain.usage_chunk(usage)

    def choice(self, update: ChoiceUpdate) -> dict[str, Any]:
        parser = self._parsing.parser()
        message = self._message(update.index, merged(parser.add(update.text) + parser.finish()))
        reason = self._parsing.finish_reason(update.finish_reason, len(message.get("tool_calls", ())))
        return {**self._plain.choice(update), "message": message, "finish_reason": reason}

    @property
    def opens_choices(self) -> bool:
        return True

    def first_chunk(self, index: int) -> bytes:
        return b""  # what a role's delta says of the content depends on what comes first

    def chunk(self, update: ChoiceUpdate) -> bytes:
        stream = self._streams.get(update.index)
        if stream is None:
            stream = self._streams[update.index] = _Stream(self._parsing.parser())
        events = stream.parser.add(update.text)
        if update.finish_reason is not None:
            events += stream.parser.finish()
        stream.take(update)
        data = b""
        for found in merged(events):
            if isinstance(found, CallEnded):
                continue
            if not stream.begun:  # also for reasoning that is not shown: clients time the first token of an output
                data += self._begin(update.index, stream, is_content=isinstance(found, Content))
            if isinstance(found, Reasoning) and not self._include_reasoning:
                continue
            data += self._event(update.index, found, stream)
        if update.finish_reason is not None:
            if not stream.begun:
                data += self._begin(update.index, stream, is_content=True)
            reason = self._parsing.finish_reason(update.finish_reason, stream.num_calls)
            data += self._plain.chunk(stream.update(update.index, "", reason, update.stop_reason))
        return data

    def _begin(self, index: int, stream: _Stream, *, is_content: bool) -> bytes:
        stream.begun = True
        return self._plain.opening(index, "" if is_content else None)

    def _event(self, index: int, found: Event, stream: _Stream) -> bytes:
        match found:
            case Content(text):
                return self._plain.chunk(stream.update(index, text))
            case Reasoning(text):
                delta = _reasoning(text)
            case CallBegun(number, name):
                stream.num_calls += 1
                if name in self._parsing.freeform:
                    stream.freeform.add(number)
                delta = {"tool_calls": [{"index": number, **self._call(index, number, name)}]}
            case Arguments(number, text):
                more = {"custom": {"input": text}} if number in stream.freeform else {"function": {"arguments": text}}
                delta = {"tool_calls": [{"index": number, **more}]}
            case _:
                return b""
        return self._delta(index, delta, stream)

    def _delta(self, index: int, delta: dict[str, Any], stream: _Stream) -> bytes:
        if not stream.entries and not stream.token_ids:
            return b'%b%d,"delta":%b%b' % (self._before_index, index, encode(delta), _AFTER_DELTA)
        written = self._plain.choice(stream.update(index, ""))
        choice = {"index": index, "delta": delta, "logprobs": written["logprobs"], "finish_reason": None}
        if "token_ids" in written:
            choice["token_ids"] = written["token_ids"]
        return event({**self._chunk_head, "choices": [choice]})

    def _message(self, index: int, events: list[Event]) -> dict[str, Any]:
        content = self._plain.echo + "".join(found.text for found in events if isinstance(found, Content))
        reasoning = "".join(found.text for found in events if isinstance(found, Reasoning))
        calls: list[dict[str, Any]] = []
        for found in events:
            if isinstance(found, CallBegun):
                calls.append(self._call(index, found.index, found.name))
            elif isinstance(found, Arguments):
                call = calls[found.index]
                inner, name = ("custom", "input") if call["type"] == "custom" else ("function", "arguments")
                call[inner][name] += found.text
        return {
            "role": "assistant",
            "content": content or (None if calls or reasoning else ""),
            "refusal": None,
            **(_reasoning(reasoning) if reasoning and self._include_reasoning else {}),
            **({"tool_calls": calls} if calls else {}),
        }

    def _call(self, choice: int, index: int, name: str) -> dict[str, Any]:
        """A call without its arguments."""
        call_id = self._call_ids.id_of(choice, index)
        if name in self._parsing.freeform:
            return {"id": call_id, "type": "custom", "custom": {"name": name, "input": ""}}
        return {
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": ""},
        }


class _Stream:
    """One streamed choice."""

    def __init__(self, parser: OutputParser) -> None:
        self.parser = parser
        self.begun = False
        self.num_calls = 0
        self.freeform: set[int] = set()
        """Numbers of the calls whose arguments are a text."""
        self.entries: list[TokenEntry] = []
        """Log-probabilities that are not given out yet: those of text that is held back, too."""
        self.token_ids: list[int] = []
        """Ids of tokens, likewise."""

    def take(self, update: ChoiceUpdate) -> None:
        self.entries += update.entries
        self.token_ids += update.token_ids

    def update(
        self, index: int, text: str, finish_reason: str | None = None, stop_reason: int | str | None = None
    ) -> ChoiceUpdate:
        """One of ``text``, with all that was not given out yet."""
        entries, self.entries = self.entries, []
        token_ids, self.token_ids = self.token_ids, []
        return ChoiceUpdate(index, text, entries, finish_reason, stop_reason, token_ids)


def _reasoning(text: str) -> dict[str, Any]:
    """Reasoning under the name that most clients read, and under the newer one of vLLM."""
    return {"reasoning_content": text, "reasoning": text}
