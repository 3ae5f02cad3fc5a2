"""What a client sees of an event stream, and what becomes of it when its engine dies.

The router forwards whole events only. That keeps every byte a client has received meaningful at any moment, so the
stream can still end in a proper error event, or be continued by another replica, which is to come here.

Two kinds of streams pass: chat and text completions, whose events have no names and which end in ``[DONE]``; and
``/v1/responses``, whose events are named and numbered and whose last one says how the response ended.
"""

import msgspec

from blade_router.errors import error_body

_DONE = b"data: [DONE]"
_LAST_NAMES = (b"response.completed", b"response.incomplete", b"response.failed", b"error")
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n")
MAX_HELD = 1 << 20
"""Bytes of an unfinished event after which they are passed on regardless: then it is no event stream."""


class _Numbered(msgspec.Struct):
    """What counts the events of a response."""

    sequence_number: int = -1


class _ErrorEvent(msgspec.Struct, tag="error", kw_only=True):
    """OpenAI's event for a stream of a response that fails."""

    code: str
    message: str
    param: None = None
    sequence_number: int


class EventStream:
    """The events of one server-sent-event answer on their way to the client. Chunks are never split into events."""

    def __init__(self) -> None:
        self._tail = b""
        self._sent = b""
        """The last bytes that were passed on: whole events."""
        self._before = b""
        """Those before them, which may hold the usage when the last ones only end the stream."""

    def feed(self, chunk: bytes) -> bytes:
        """The bytes that may be sent now: all up to the end of the last complete event."""
        if self._tail:
            chunk = self._tail + chunk
            self._tail = b""
        if not chunk.endswith(_EVENT_ENDS):
            cut = max(chunk.rfind(end) + len(end) if end in chunk else 0 for end in _EVENT_ENDS)
            if len(chunk) - cut < MAX_HELD:
                chunk, self._tail = chunk[:cut], chunk[cut:]
        if chunk:
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

    def broken(self, why: str) -> bytes:
        """The last event of a stream whose engine is gone; nothing when the stream had said that it is over.

        An unfinished event is dropped: the client must not take half of one for the whole.
        """
        name, data = self._last_event()
        if name in _LAST_NAMES or data.startswith(_DONE):
            return b""
        message, code = f"the engine was lost in the middle of the answer ({why}); try again", "engine_lost"
        if not name:
            return b"data: " + error_body(500, message, code) + b"\n\n"
        event = _ErrorEvent(code=code, message=message, sequence_number=_number(data) + 1)
        return b"event: error\ndata: " + msgspec.json.encode(event) + b"\n\n"

    def _last_event(self) -> tuple[bytes, bytes]:
        """Name (empty without one) and data line of the last event that was passed on."""
        event = self._sent.replace(b"\r\n", b"\n").rstrip(b"\n").rpartition(b"\n\n")[2]
        lines = event.split(b"\n")
        name = next((line for line in lines if line.startswith(b"event:")), b"")
        data = next((line for line in lines if line.startswith(b"data:")), b"")
        return name.removeprefix(b"event:").strip(), data


def _number(data: bytes) -> int:
    try:
        return msgspec.json.decode(data.removeprefix(b"data:"), type=_Numbered).sequence_number
    except msgspec.DecodeError:
        return -1
