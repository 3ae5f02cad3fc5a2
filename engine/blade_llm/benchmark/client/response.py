"""Reads a streamed response: when text came, how many tokens it was, whether it ended well."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from blade_llm.benchmark.client.measurement import Failure
from blade_llm.benchmark.client.sse import EventParser

_MAX_BODY_BYTES: Final = 2000
"""Bytes kept of the body of an error."""
_MAX_DETAIL_CHARACTERS: Final = 300


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning_content or self.reasoning or self.tool_calls)


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = msgspec.field(default_factory=list)
    usage: _Usage | None = None
    error: Any = None


_decode: Final = msgspec.json.Decoder(_Chunk).decode


class ResponseReader:
    """Follows one response; a :class:`~blade_llm.benchmark.client.connection.Reply`."""

    def __init__(self) -> None:
        self.events: list[float] = []
        """When each event with text arrived."""
        self.prompt_tokens: int | None = None
        """Prompt tokens as the server counts them; None when it does not report them."""
        self.completion_tokens: int | None = None
        self.status: int | None = None
        self._streaming = False
        self._content_type = ""
        self._body = b""
        self._parser = EventParser()
        self._finished = False
        self._failure: Failure | None = None

    def begin(self, status: int, content_type: str) -> None:
        self.status, self._content_type = status, content_type
        self._streaming = status == 200 and content_type.startswith("text/event-stream")

    def feed(self, data: bytes, now: float) -> None:
        if not self._streaming:
            self._body = (self._body + data)[:_MAX_BODY_BYTES]
            return
        for event in self._parser.feed(data):
            self._take(event, now)

    def failure(self) -> Failure | None:
        """What was wrong with the whole response; None when nothing was."""
        if self.status != 200:
            return Failure(kind=f"HTTP {self.status}", detail=_message(self._body))
        if not self._streaming:
            what = self._content_type or "something without a content type"
            return Failure(kind="not a stream", detail=f"asked for text/event-stream, got {what}")
        if self._failure is None and not self._finished:
            return Failure(kind="stream cut", detail=f"ended after {len(self.events)} events without a finish_reason")
        return self._failure

    def _take(self, event: bytes, now: float) -> None:
        if event == b"[DONE]":
            self._finished = True
            return
        try:
            chunk = _decode(event)
        except msgspec.MsgspecError as error:
            self._fail(Failure(kind="malformed event", detail=f"{error}: {_text(event)}"))
            return
        if chunk.error is not None:
            self._fail(Failure(kind="error in the stream", detail=_message(event)))
            return
        if chunk.choices:
            choice = chunk.choices[0]
            if choice.delta or choice.text:
                self.events.append(now)
            if choice.finish_reason is not None:
                self._finished = True
        if chunk.usage is not None:
            self.prompt_tokens = chunk.usage.prompt_tokens
            self.completion_tokens = chunk.usage.completion_tokens

    def _fail(self, failure: Failure) -> None:
        self._failure = self._failure or failure


def _message(body: bytes) -> str:
    """The message in an error as OpenAI's API words it, or the text itself."""
    try:
        error = msgspec.json.decode(body)
        error = error.get("error", error)
        message = error if isinstance(error, str) else error.get("message", error.get("detail"))
    except (msgspec.DecodeError, AttributeError):
        message = None
    return message[:_MAX_DETAIL_CHARACTERS] if isinstance(message, str) else _text(body)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")[:_MAX_DETAIL_CHARACTERS]
