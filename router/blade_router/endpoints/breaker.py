"""The circuit breaker of one endpoint: when it is ejected because requests fail on it, and how it recovers.

Closed, it takes requests. After some failures in a row it opens: none for a while. Then it is half open: one request at
a time may probe it. That one's success closes it; its failure opens it again, for twice as long.
"""

from typing import Literal

CONSECUTIVE_FAILURES = 3
"""Failures in a row that eject an endpoint."""
BASE_EJECTION_SECONDS = 0.5
MAX_EJECTION_SECONDS = 30.0
"""Seconds of the first and of the longest ejection; each further failure doubles it."""
UNATTRIBUTED_PER_FAILURE = 4
"""So many 5xx that no other endpoint answered better count as one failure."""
MAX_RETRY_AFTER = 60.0
"""The longest ``Retry-After`` of an engine that is honoured, in seconds."""

State = Literal["closed", "half-open", "open"]


def ejection_seconds(failures: int) -> float:
    """How long an endpoint is ejected after that many consecutive failures."""
    if failures < CONSECUTIVE_FAILURES:
        return 0.0
    return min(MAX_EJECTION_SECONDS, BASE_EJECTION_SECONDS * 2.0 ** min(failures - CONSECUTIVE_FAILURES, 16))


class Breaker:
    """The circuit breaker of one endpoint. Times are of the monotonic clock, in seconds."""

    __slots__ = ("_unattributed", "closed", "failures", "open_until", "probing")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Close it and forget all failures."""
        self.closed = True
        self.failures = 0
        """Consecutive failed requests."""
        self.open_until = 0.0
        self.probing = False
        """Half open, and a request is probing it."""
        self._unattributed = 0

    def allows(self, now: float) -> bool:
        """A request may be sent."""
        return self.closed or (self.open_until <= now and not self.probing)

    def state(self, now: float) -> State:
        if self.closed:
            return "closed"
        return "half-open" if self.open_until <= now else "open"

    def begin_probe(self) -> bool:
        """A request is sent; True when it is the half-open probe. Then ``end_probe`` must follow."""
        if self.closed or self.probing:
            return False
        self.probing = True
        return True

    def end_probe(self) -> None:
        """The probe has ended, however that came."""
        self.probing = False

    def succeed(self) -> bool:
        """A request was answered; True when that closed the breaker."""
        if self.closed and not self.failures and not self._unattributed:
            return False
        was_open = not self.closed
        self.reset()
        return was_open

    def fail(self, now: float, may_open: bool = True) -> float:
        """A request failed; returns the seconds of the ejection that begins now, 0 when none does.

        Requests that were in flight when it opened fail for the same reason, and do not count.
        """
        if now < self.open_until:
            return 0.0
        self.failures += 1
        return self.eject_for(now, ejection_seconds(self.failures)) if may_open or not self.closed else 0.0

    def fail_unattributed(self, now: float, may_open: bool = True) -> float:
        """A 5xx to a request that every endpoint it was sent to answered so: most likely it is the request's fault."""
        self._unattributed += 1
        if self._unattributed % UNATTRIBUTED_PER_FAILURE:
            return 0.0
        return self.fail(now, may_open)

    def eject_for(self, now: float, seconds: float) -> float:
        """Open for so long, whatever the record."""
        if seconds > 0.0:
            self.closed = False
            self.open_until = max(self.open_until, now + min(seconds, MAX_RETRY_AFTER))
        return seconds
