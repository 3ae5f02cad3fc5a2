"""The event stream a client receives, and what becomes of it when its engine dies.

The router forwards whole events only. That keeps every byte a client has received meaningful at any moment, so the
stream can still end in a proper error event, or be continued by another replica. For that an engine writes the token
ids of what it has sent into the stream, as comments (:mod:`blade_protocol.resume`); they are kept here, and taken out.

Three kinds of streams pass: chat and text completions, whose events have no names and which end in ``[DONE]``;
``/v1/responses``, whose events are named and numbered and whose last one says how the response ended; and
``/v1/messages``, whose events are named and whose last one is ``message_stop``.
"""

from typing import Final

import msgspec

from blade_protocol import anthropic, headers
from blade_protocol.resume import LOST
from blade_router.http.errors import Headers, error_body
from blade_router.resume.comments import num_comments, without_comments
from blade_router.resume.numbered_events import ErrorEvent, Numbered

_DONE = b"data: [DONE]"
_LAST_NAMES = (b"response.completed", b"response.incomplete", b"response.failed", b"message_stop", b"error")
_OF_MESSAGES = (b"message_", b"content_block_", b"ping")
_EVENT_ENDS: Final = (b"\n\n", b"\r\n\r\n")
_IDS_BEGIN: Final = b"\n\n: "
_NEWLINE: Final = 10
_FEW_IDS: Final = 64
"""Bytes of token ids in which their beginning is looked for from the end."""
_DIGEST = headers.PROMPT_DIGEST.encode()
MAX_BUFFERED: Final = 1 << 20
"""Bytes of an unfinished event after which they are passed on regardless: then it is no event stream."""


class EventStream:
    """The events of one server-sent-event response on their way to the client. Chunks are never split into events."""

    lost = False
    """The engine has announced that it cannot continue the stream, and another one can."""

    def __init__(self) -> None:
        self._tail = b""
        self._sent = b""
        """The last bytes that were passed on: whole events."""
        self._before = b""
        """Those before them, which may hold the usage when the last ones only end the stream."""
        self.count = 0
        """Events in what ``feed`` returned last."""

    def feed(self, chunk: bytes) -> bytes:
        """The bytes that may be sent now: all up to the end of the last complete event."""
        if self._tail:
            chunk = self._tail + chunk
            self._tail = b""
        if not chunk.endswith(b"\n\n") and not chunk.endswith(_EVENT_ENDS):
            cut = max(chunk.rfind(end) + len(end) if end in chunk else 0 for end in _EVENT_ENDS)
            if len(chunk) - cut < MAX_BUFFERED:
                chunk, self._tail = chunk[:cut], chunk[cut:]
        # Most are one line of data.
        if chunk.endswith(b"\n\n") and b"\n" not in chunk[:-2]:
            self.count = 0 if chunk.startswith(b":") else 1
        else:
            self.count = chunk.count(b"\n\n") - num_comments(chunk)
        if chunk and (self.count or without_comments(chunk)):
            self._before, self._sent = self._sent, chunk
        return chunk

    def end(self) -> bytes:
        """The rest, when the engine has ended the stream properly."""
        rest, self._tail = self._tail, b""
        return rest

    @property
    def last(self) -> bytes:
        """The last events that were passed on, together with what followed them."""
        return self._before + self._sent

    @property
    def split(self) -> bool:
        """What was passed on ends within an event: nothing that follows would be understood."""
        return bool(self._sent) and not self._sent.endswith(_EVENT_ENDS)

    @property
    def over(self) -> bool:
        """The last event that was passed on ends the stream."""
        name, data = self._last_event()
        return name in _LAST_NAMES or data.startswith(_DONE)

    def broken(self, why: str) -> bytes:
        """The last event of a stream whose engine is gone; nothing when the stream was complete.

        An unfinished event is dropped: the client must not take half of one for the whole.
        """
        if self.over:
            return b""
        name, data = self._last_event()
        message, code = f"the engine was lost in the middle of the answer ({why}); try again", "engine_lost"
        if not name:
            return b"data: " + error_body(500, message, code) + b"\n\n"
        if name.startswith(_OF_MESSAGES):
            return anthropic.error_event(anthropic.error_body(500, message, code))
        event = ErrorEvent(code=code, message=message, sequence_number=_number(data) + 1)
        return b"event: error\ndata: " + msgspec.json.encode(event) + b"\n\n"

    def _last_event(self) -> tuple[bytes, bytes]:
        """Name (empty without one) and data line of the last event that was passed on."""
        rest, event = self._sent.replace(b"\r\n", b"\n").rstrip(b"\n"), b""
        while rest and not event:
            rest, _, event = rest.rpartition(b"\n\n")
            event = without_comments(event)
        lines = event.split(b"\n")
        name = next((line for line in lines if line.startswith(b"event:")), b"")
        data = next((line for line in lines if line.startswith(b"data:")), b"")
        return name.removeprefix(b"event:").strip(), data


class ResumableStream(EventStream):
    """The events of a stream with token ids. What is passed on ends where ids do, so these are exactly its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self._ids = bytearray()
        """The token ids as they came, a line for each group: lists of numbers would take ten times the memory."""
        self._plain = False
        """No token ids come, whatever was announced: it is passed on like any other stream."""

    def feed(self, chunk: bytes) -> bytes:
        if self._plain:
            return super().feed(chunk)
        if self._tail:
            chunk = self._tail + chunk
            self._tail = b""
        end = _end_of_event(chunk)
        if end:
            self._ids += chunk[end + 2 : -1]
            events = chunk[:end]
            self.count = 1
        else:
            events = self._groups(chunk)
            self.count = events.count(b"\n\n") - num_comments(events)
        if events:
            self._before, self._sent = self._sent, events
        return events

    def resumed(self) -> None:
        """Another engine resumes it: what the one before began to write and did not end is dropped."""
        self._tail = b""
        self.lost = False

    @property
    def token_ids(self) -> list[list[int]]:
        """Token ids of all that was passed on, group by group.

        Raises:
            msgspec.MsgspecError: the engine wrote something else.
        """
        if self._plain:
            raise msgspec.ValidationError("an event without ids was passed on")
        groups = bytes(self._ids[:-1]).replace(b"\n", b"],[")
        return msgspec.json.decode(b"[[%b]]" % groups, type=list[list[int]])

    def _groups(self, chunk: bytes) -> bytes:
        """All complete groups; the rest is buffered."""
        parts: list[bytes] = []
        start = 0
        while (begin := chunk.find(_IDS_BEGIN, start)) >= 0 and (end := chunk.find(b"\n\n", begin + 4)) >= 0:
            parts.append(chunk[start : begin + 2])
            self._ids += chunk[begin + 4 : end + 1]
            start = end + 2
        rest = chunk[start:]
        if rest == LOST:
            self.lost = True
        elif len(rest) < MAX_BUFFERED:
            self._tail = rest
        else:
            self._plain = True
            parts.append(rest)
        return b"".join(parts)


def _end_of_event(chunk: bytes) -> int:
    """Where the event ends in what nearly always comes: an event of one line and its token ids. 0: it is more or less.

    Looks at the last bytes one by one, which costs a compiled function less than a search from the beginning.
    """
    at = len(chunk) - 3
    if at < 4 or chunk[at + 1] != _NEWLINE or chunk[at + 2] != _NEWLINE:
        return 0
    least = max(1, at - _FEW_IDS)
    while at > least and chunk[at] != _NEWLINE:
        at -= 1
    if chunk[at] != _NEWLINE or chunk[at - 1 : at + 3] != _IDS_BEGIN or b"\n" in chunk[: at - 1]:
        return 0
    return at + 1


def event_stream(headers: Headers) -> EventStream:
    """The event stream of a response with these headers."""
    return ResumableStream() if any(name == _DIGEST for name, _ in headers) else EventStream()


def _number(data: bytes) -> int:
    try:
        return msgspec.json.decode(data.removeprefix(b"data:"), type=Numbered).sequence_number
    except msgspec.DecodeError:
        return -1
