"""A work queue in the manner of client-go's: keys are deduplicated, each has one worker at a time, failures back off.

Keys added because something changed go before keys added for a resync, so that idle services do not delay them.
"""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from blade_operator import backoff

K = TypeVar("K")


class WorkQueue(Generic[K]):
    """A key added while it waits is not queued twice; one added during processing is queued once more afterwards."""

    def __init__(self) -> None:
        self._ready: dict[K, None] = {}
        self._low_priority: dict[K, None] = {}
        self._processing: set[K] = set()
        self._dirty: set[K] = set()
        """Keys added while they are processed."""
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        """Number of keys that wait for a worker."""
        return len(self._ready) + len(self._low_priority)

    def add(self, key: K, *, low_priority: bool = False) -> None:
        """Queue ``key`` now; this replaces a delayed add."""
        self._cancel(key)
        if key in self._processing:
            self._dirty.add(key)
            return
        if not low_priority:
            self._low_priority.pop(key, None)
            self._ready[key] = None
        elif key not in self._ready:
            self._low_priority[key] = None
        self._wake.set()

    def add_after(self, key: K, seconds: float, *, low_priority: bool = False) -> None:
        """Queue ``key`` in ``seconds`` unless it is added before; the earlier of two delayed adds counts."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None and timer.when() <= loop.time() + seconds:
            return
        self._cancel(key)
        self._timers[key] = loop.call_later(seconds, lambda: self.add(key, low_priority=low_priority))

    def add_rate_limited(self, key: K, at_least: float = 0.0) -> float:
        """Queue ``key``, which failed, after its back-off: longer each time, with jitter. Returns the seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        seconds = max(backoff.delay(failures), at_least)
        self.add_after(key, seconds)
        return seconds

    def forget(self, key: K) -> None:
        """Reset the back-off of ``key``, which succeeded."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """The next key, which no other worker gets until ``done`` is called for it."""
        while not (lane := self._ready or self._low_priority):
            self._wake.clear()
            await self._wake.wait()
        key = next(iter(lane))
        del lane[key]
        self._processing.add(key)
        return key

    def done(self, key: K) -> None:
        """Mark ``key`` as processed, and queue it again when it was added meanwhile."""
        self._processing.discard(key)
        if key in self._dirty:
            self._dirty.discard(key)
            self.add(key)

    def close(self) -> None:
        """Cancel all delayed adds."""
        for key in list(self._timers):
            self._cancel(key)

    def _cancel(self, key: K) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
