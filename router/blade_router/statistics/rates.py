"""Sliding-window rates: counts of the last seconds, in a ring."""


class Rate:
    """Events of the last ``seconds`` whole seconds and the current one. All times are of one monotonic clock."""

    __slots__ = ("_counts", "_first", "_second", "count")

    def __init__(self, seconds: int = 10) -> None:
        self.count = 0
        """All events since the start."""
        self._counts = [0] * (seconds + 1)
        self._second = -1
        self._first: float | None = None

    def add(self, now: float, count: int = 1) -> None:
        second = int(now)
        if second != self._second:
            self._advance(second)
            if self._first is None:
                self._first = now
        self._counts[second % len(self._counts)] += count
        self.count += count

    def recent(self, now: float) -> int:
        """The events in the window."""
        self._advance(int(now))
        return sum(self._counts)

    def per_second(self, now: float) -> float:
        """The mean rate over the window, or since the first event where that is shorter."""
        if self._first is None:
            return 0.0
        window = len(self._counts) - 1 + now % 1.0
        return self.recent(now) / max(1.0, min(window, now - self._first))

    def _advance(self, second: int) -> None:
        """Drop the seconds that have left the window."""
        size = len(self._counts)
        for passed in range(max(self._second + 1, second - size + 1), second + 1):
            self._counts[passed % size] = 0
        self._second = max(self._second, second)
