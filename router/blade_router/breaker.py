"""When an endpoint is left out because requests fail on it, and how it comes back.

Closed, it takes requests. After some failures in a row it opens: none for a while. Then it is half open: one request at
a time may try it. That one's success closes it; its failure opens it again, for twice as long.
"""

from typing import Literal

OPEN_AFTER = 3
"""Consecutive failures from which on an endpoint is left out."""
OPEN_FIRST = 0.5
OPEN_MOST = 30.0
"""Seconds of the first and of the longest time it is left out; each further failure doubles it."""
UNDECIDED = 4
"""So many 5xx that no other endpoint answered better count as one failure."""
MOST_PAUSE = 60.0
"""The longest ``Retry-After`` of an engine that is honoured, in seconds."""

State = Literal["closed", "half-open", "open"]


def open_seconds(failures: int) -> float:
    """How long an endpoint stays out after that many consecutive failures."""
    if failures < OPEN_AFTER:
        return 0.0
    return min(OPEN_MOST, OPEN_FIRST * 2.0 ** min(failures - OPEN_AFTER, 16))


class Breaker:
    """One endpoint's. Times are of the monotonic clock, in seconds."""

    __slots__ = ("_undecided", "closed", "failures", "open_until", "trying")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """A clean record."""
        self.closed = True
        self.failures = 0
        """Consecutive failed requests."""
        self.open_until = 0.0
        self.trying = False
        """Half open, and a request is trying it."""
        self._undecided = 0

    def lets_through(self, now: float) -> bool:
        """A request may be sent."""
        return self.closed or (self.open_until <= now and not self.trying)

    def state(self, now: float) -> State:
        if self.closed:
            return "closed"
        return "half-open" if self.open_until <= now else "open"

    def enter(self) -> bool:
        """A request is sent; True when it is the one that tries a half-open endpoint. Then ``leave`` must follow."""
        if self.closed or self.trying:
            return False
        self.trying = True
        return True

    def leave(self) -> None:
        self.trying = False

    def succeed(self) -> bool:
        """A request was answered; True when that closed it."""
        if self.closed and not self.failures and not self._undecided:
            return False
        reopened = not self.closed
        self.reset()
        return reopened

    def fail(self, now: float, may_open: bool = True) -> float:
        """A request failed; returns the seconds it is left out from now on, 0 when it is not.

        Requests that were under way when it opened fail for the same reason, and do not count.
        """
        if now < self.open_until:
            return 0.0
        self.failures += 1
        return self.pause(now, open_seconds(self.failures)) if may_open or not self.closed else 0.0

    def undecided(self, now: float, may_open: bool = True) -> float:
        """A 5xx to a request that every endpoint it was sent to answered so: most likely it is the request's fault."""
        self._undecided += 1
        if self._undecided % UNDECIDED:
            return 0.0
        return self.fail(now, may_open)

    def pause(self, now: float, seconds: float) -> float:
        """Leave it out for so long, whatever its record."""
        if seconds > 0.0:
            self.closed = False
            self.open_until = max(self.open_until, now + min(seconds, MOST_PAUSE))
        return seconds
