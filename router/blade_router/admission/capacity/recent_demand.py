"""What keys other than the busiest have needed at the same time of late: so much stays free for them.

A client that runs eight requests at a time pauses between two of them, and a slot that it gives back would go to
whoever has most requests waiting: its next request would then wait for a stranger's stream to end. So a key that has
its fair share may take what the others together do not need. What each of them needs beyond its own fair share does not
count.
"""

import time
from collections.abc import Callable

HALF_SECONDS = 30.0
"""A peak counts for at least so long, and at most for twice as long."""
TINY = 1e-6
"""A weight that is nothing but what rounding leaves."""
FEW = 16
SUM_SECONDS = 0.005
"""Seconds between two sums over all keys that have requests, where these are more than a few."""


class Peaks:
    """The peaks of half a minute."""

    __slots__ = ("first", "first_key", "others", "second")

    def __init__(self) -> None:
        self.others = 0
        """Requests that the keys other than the busiest had at the same time."""
        self.first = self.second = 0
        """Requests of the two keys that had most."""
        self.first_key = ""

    def observe(self, key: str, requests: int) -> None:
        """A key has so many requests."""
        if key == self.first_key:
            self.first = max(self.first, requests)
        elif requests > self.first:
            self.first, self.first_key, self.second = requests, key, self.first
        else:
            self.second = max(self.second, requests)

    def of_others(self, key: str) -> int:
        """The most requests that one key had, other than this one."""
        return self.second if key == self.first_key else self.first


class RecentDemand:
    """The demand of keys now, and its peak, in one process.

    Args:
        clock: monotonic seconds.
    """

    __slots__ = ("_before", "_clock", "_keys", "_now", "_requests", "_summed", "_turned", "_weights", "total")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.total = 0
        """Slots that keys share."""
        self._clock = clock
        self._keys: dict[str, tuple[int, float]] = {}
        """Requests that run or wait, and the key's weight."""
        self._requests = 0
        self._weights = 0.0
        """Sums over all of them."""
        self._summed = float("-inf")
        """When the demand of the others was last summed up."""
        self._now, self._before = Peaks(), Peaks()
        """Of this half minute, and of the one before."""
        self._turned = clock()

    def add(self, key: str, weight: float) -> None:
        """A request of that key has come."""
        now = self._turn()
        known = self._keys.get(key)
        requests = 1 if known is None else known[0] + 1
        self._weights += weight - (0.0 if known is None else known[1])
        self._requests += 1
        self._keys[key] = (requests, weight)
        peaks = self._now
        peaks.observe(key, requests)
        several = len(self._keys)
        if (several > 1 and self._requests > peaks.others) and (several <= FEW or now - self._summed >= SUM_SECONDS):
            self._summed = now
            peaks.others = max(peaks.others, self._of_others())

    def remove(self, key: str) -> None:
        """A request of that key has gone."""
        known = self._keys.get(key)
        if known is None:
            return
        self._requests -= 1
        if known[0] > 1:
            self._keys[key] = (known[0] - 1, known[1])
        else:
            self._weights -= known[1]
            del self._keys[key]

    def fair_share(self, key: str, weight: float) -> float:
        """Slots that are a key's while all others that have requests, or one that had some, want as many."""
        known = self._keys.get(key)
        others = self._weights if known is None else self._weights - known[1]
        return self.total * weight / (weight + (others if others > TINY else 1.0))

    def peak(self) -> int:
        """Requests that the keys other than the busiest had at the same time, at most."""
        self._turn()
        return max(self._now.others, self._before.others)

    def peak_of_another(self, key: str) -> int:
        """The most requests that one key had, other than this one."""
        self._turn()
        return max(self._now.of_others(key), self._before.of_others(key))

    def busiest(self) -> tuple[str, int]:
        """The key that had the most requests, and how many."""
        self._turn()
        most = max(self._now, self._before, key=_first)
        return most.first_key, most.first

    def _turn(self) -> float:
        now = self._clock()
        if now - self._turned >= HALF_SECONDS:
            self._before = self._now if now - self._turned < 2 * HALF_SECONDS else Peaks()
            self._now = Peaks()
            self._turned = now
        return now

    def _of_others(self) -> int:
        part = self.total / self._weights
        demands = [min(requests, part * weight) for requests, weight in self._keys.values()]
        return int(sum(demands) - max(demands))


def _first(peaks: Peaks) -> int:
    return peaks.first
