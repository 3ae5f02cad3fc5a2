"""Fencing: only the leader writes, so every write to the cluster passes one fence.

The clock is one that goes on while the process is stopped or its machine sleeps, so a process that was away for longer
than its lease finds it shut, whatever it was about to do.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

Clock = Callable[[], float]
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class NotLeader(Exception):
    """This process may not write now."""

    def __init__(self) -> None:
        super().__init__("not the leader now: nothing is written")


def clock() -> float:
    """Seconds on a clock that nobody sets and nothing halts."""
    return time.clock_gettime(_CLOCK)


class WriteFence:
    """Shut at first."""

    def __init__(self, clock: Clock = clock) -> None:
        self._clock = clock
        self._until = -math.inf

    def open(self, until: float = math.inf) -> None:
        """Let writes pass before ``until`` on the fence's clock."""
        self._until = until

    def shut(self) -> None:
        """Let nothing pass."""
        self._until = -math.inf

    @property
    def is_open(self) -> bool:
        """Whether a write would pass now."""
        return self._clock() < self._until

    def check(self) -> None:
        """Raises `NotLeader` when shut."""
        if not self.is_open:
            raise NotLeader
