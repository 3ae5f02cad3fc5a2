"""Comments in streams that are silent: while a request waits in the queue, or its prompt is computed.

Clients and the proxies before them drop a connection on which nothing comes for long. A comment (``: keep-alive``; the
HTML standard, section 9.2.6) is something that every reader of server-sent events skips.

One timer looks at all streams of a process: a task for each of thousands that wait would cost more than they do.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

INTERVAL_SECONDS: Final = 10.0
COMMENT: Final = b": keep-alive\n\n"
SCOPE_KEY: Final = "blade_llm.comments"
"""Where an ASGI scope has the :class:`StreamComments`; without, the stream gets none."""
_LONGEST_TICK: Final = 1.0


class Stream(Protocol):
    """A stream that may fall silent."""

    num_sent: int
    """Grows with whatever is sent."""

    def comment(self) -> None:
        """Send a comment, unless the connection takes nothing now."""


class StreamComments:
    """Has every watched stream send a comment when it has sent nothing for ``interval`` seconds (up to a tenth more, or
    a second); 0: never."""

    def __init__(self, interval: float = INTERVAL_SECONDS) -> None:
        self._interval = interval
        self._tick = min(interval / 10, _LONGEST_TICK)
        self._streams: dict[Stream, tuple[int, float]] = {}
        """What each had sent, and when it was first seen to have sent that."""
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, stream: Stream) -> None:
        """Begin with a stream."""
        if not self._interval:
            return
        loop = asyncio.get_running_loop()
        self._streams[stream] = (stream.num_sent, loop.time())
        if self._timer is None:
            self._timer = loop.call_later(self._tick, self._look)

    def leave(self, stream: Stream) -> None:
        """The stream is over. Nothing happens for one that is not watched."""
        self._streams.pop(stream, None)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        try:
            for stream, (sent, since) in list(self._streams.items()):
                if stream.num_sent != sent:
                    self._streams[stream] = (stream.num_sent, now)
                elif now - since >= self._interval:
                    self._streams[stream] = (stream.num_sent, now)
                    stream.comment()
        finally:  # what goes wrong with one stream must not end the comments of all
            self._timer = loop.call_later(self._tick, self._look) if self._streams else None
