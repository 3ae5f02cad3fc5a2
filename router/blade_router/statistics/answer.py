"""One of two answers to the same request that are compared: what came of it, and as much of it as is kept."""

from collections.abc import Callable
from time import perf_counter
from typing import Final

MAX_KEPT: Final = 128 << 10
"""Bytes of an answer that are kept; of a longer one the beginning is."""


class Answer:
    """An answer while it comes. Times are ``time.perf_counter``'s.

    Args:
        on_close: called when nothing more comes of it, whatever that is.
    """

    __slots__ = (
        *("_on_close", "_parts", "answered", "closed", "end", "ended", "failed", "known", "sent", "size", "streamed"),
        "tokens",
    )

    def __init__(self, on_close: Callable[[], None] | None = None) -> None:
        self._on_close = on_close
        self._parts: list[bytes] = []
        self.sent = perf_counter()
        self.size = 0
        """Bytes of its body, those that are not kept included."""
        self.known = False
        """It is over, and counts."""
        self.failed = False
        self.closed = False
        self.answered = 0.0
        """When its first byte came."""
        self.ended = 0.0
        self.streamed = False
        self.tokens = 0
        """Of the completion; 0 where they are not known."""
        self.end = b""
        """Its last bytes."""

    def keep(self, part: bytes) -> None:
        """More of the body has come."""
        if self.known:  # by another attempt
            return
        left = MAX_KEPT - self.size
        if left > 0 and part:
            self._parts.append(part if len(part) <= left else part[:left])
        self.size += len(part)

    @property
    def kept(self) -> bytes:
        """The body, or its beginning."""
        return b"".join(self._parts)

    @property
    def whole(self) -> bool:
        """All of it is kept."""
        return self.size <= MAX_KEPT

    def fail(self) -> None:
        """The engine failed."""
        if not self.known:
            self.known = self.failed = True
            self.ended = perf_counter()
            self._parts.clear()

    def succeed(self, answered: float, ended: float, streamed: bool, tokens: int, end: bytes) -> None:
        """The whole response came."""
        if not self.known:
            self.known = True
            self.answered, self.ended = answered, ended
            self.streamed, self.tokens, self.end = streamed, tokens, end

    def forget(self) -> None:
        """What was kept is not needed any more."""
        self._on_close = None
        self._parts.clear()

    def close(self) -> None:
        """Nothing more comes. Called once or more."""
        if not self.closed:
            self.closed = True
            if self._on_close is not None:
                self._on_close()
