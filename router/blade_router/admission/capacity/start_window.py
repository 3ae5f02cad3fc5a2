"""How many requests engines may have whose first token is still to come.

A slot is not all that a request needs: an engine with 256 of them that gets 200 long prompts at once computes prompts
for a minute, and the next request waits behind all of them. So the router sends only so many at a time that a first
token comes within ``TARGET_SECONDS``, and the others wait where they are put in order. The number is learned as a
congestion window is: one more with each first token that comes in time while requests wait for it, three tenths less
when one comes late.
"""

import time
from collections.abc import Callable

TARGET_SECONDS = 0.5
"""Time to first token up to which an engine gets more prompts at a time. Another key's request waits until one of them
has started, and then among them."""
LONGEST_SECONDS = 10.0
"""Time for which a request without a first token counts: an engine that hangs does not keep the others idle."""
INITIAL, LEAST, MOST = 4, 2, 1024
"""Requests of an engine at first, always, and at most."""
DECREASE = 0.7
FORGET_SECONDS = 5.0
"""Seconds without a request that waits for the window, after which half of what was learned is forgotten."""


class Start:
    """A request that was sent to an engine."""

    __slots__ = ("since", "streams")

    def __init__(self, since: float, streams: bool) -> None:
        self.since = since
        self.streams = streams


class StartWindow:
    """The window of one service in one process.

    A response that does not stream does not show its first token: it counts for as long as streams take to theirs.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.enabled = False
        self._clock = clock
        self._engines = 1
        self._size = float(INITIAL)
        self._silent: dict[Start, None] = {}
        """Those of them that do not stream."""
        self._counted: dict[Start, None] = {}
        """Requests whose first token is to come, in their order."""
        self._start_seconds = 0.0
        """Mean time to first token of streams."""
        self._bound_at = 0.0
        """When a request last found the window full."""
        self._decreased_at = 0.0

    def configure(self, engines: int, *, enabled: bool) -> None:
        """Take over the number of engines. It matters only where keys must not keep each other out."""
        self.enabled = enabled
        if engines != self._engines:
            self._size *= max(1, engines) / self._engines
            self._engines = max(1, engines)

    @property
    def size(self) -> int:
        return max(LEAST * self._engines, int(self._size))

    @property
    def starting(self) -> int:
        """Requests whose first token is to come."""
        return len(self._counted)

    def is_full(self) -> bool:
        """No further request may be sent to an engine now."""
        if not self.enabled or len(self._counted) < self.size:
            return False
        now = self._clock()
        for starts, seconds in ((self._counted, LONGEST_SECONDS), (self._silent, self._start_seconds)):
            while starts and (oldest := next(iter(starts))).since <= now - seconds:
                self.end(oldest)
        if len(self._counted) < self.size:
            return False
        self._bound_at = now
        return True

    def begin(self, streams: bool) -> Start | None:
        """A request is sent to an engine."""
        if not self.enabled:
            return None
        now = self._clock()
        if now - self._bound_at > FORGET_SECONDS:
            self._bound_at = now
            self._size = max(float(INITIAL * self._engines), self._size / 2)
        start = Start(now, streams)
        self._counted[start] = None
        if not streams:
            self._silent[start] = None
        return start

    def first_token(self, start: Start) -> None:
        """Its first token has come."""
        if start.streams and start in self._counted:
            self._learn(start)
        self.end(start)

    def end(self, start: Start) -> None:
        """It has ended, perhaps without any."""
        self._counted.pop(start, None)
        self._silent.pop(start, None)

    def _learn(self, start: Start) -> None:
        now = self._clock()
        seconds = now - start.since
        self._start_seconds += (seconds - self._start_seconds) / 8
        if seconds > TARGET_SECONDS:
            if start.since >= self._decreased_at:  # once for all that were sent in the same window
                self._size = max(float(LEAST * self._engines), min(self._size, len(self._counted)) * DECREASE)
                self._decreased_at = now
        elif self._bound_at >= start.since:
            self._size = min(self._size + 1.0, float(MOST * self._engines))
