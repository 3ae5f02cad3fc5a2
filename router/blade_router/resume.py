"""What a client sees of an event stream, and what becomes of it when its engine dies.

The router forwards whole events only. That keeps every byte a client has received meaningful at any moment, so the
stream can still end in a proper error event, or be continued by another replica, which is to come here.
"""

from blade_router.errors import error_body

_DONE = (b"data: [DONE]\n\n", b"data: [DONE]\r\n\r\n")
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n")
MAX_HELD = 1 << 20
"""Bytes of an unfinished event after which they are passed on regardless: then it is no event stream."""


class EventStream:
    """The events of one server-sent-event answer on their way to the client. Chunks are never split into events."""

    def __init__(self) -> None:
        self._tail = b""
        self._done = False

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
            self._done = chunk.endswith(_DONE)
        return chunk

    def end(self) -> bytes:
        """The rest, when the engine has ended the stream properly."""
        rest, self._tail = self._tail, b""
        return rest

    def broken(self, why: str) -> bytes:
        """The last event of a stream whose engine is gone; nothing when it had said ``[DONE]`` already.

        An unfinished event is dropped: the client must not take half of one for the whole.
        """
        if self._done:
            return b""
        body = error_body(500, f"the engine was lost in the middle of the answer ({why}); try again", "engine_lost")
        return b"data: " + body + b"\n\n"
