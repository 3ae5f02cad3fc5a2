"""A work queue in the manner of client-go's: keys are deduplicated, each has one worker at a time, failures back off.

Keys are handed out by priority: what changes the number of engines before other changes, and those before resyncs, so
that idle services delay nothing.
"""

from __future__ import annotations

import asyncio
from enum import IntEnum
from typing import Generic, TypeVar

from blade_operator import backoff

K = TypeVar("K")


class Priority(IntEnum):
    """Why a key is queued; the first goes before the others."""

    SCALING = 0
    """The number of engines is to change, or requests wait for an engine."""
    CHANGE = 1
    """Something changed, or is to go on."""
    RESYNC = 2
    """Time has passed."""


class WorkQueue(Generic[K]):
    """A key added while it waits is not queued twice; one added during processing is queued once more afterwards. Of
    several adds the highest priority counts."""

    def __init__(self) -> None:
        self._lanes: dict[Priority, dict[K, None]] = {priority: {} for priority in Priority}
        self._waiting: dict[K, Priority] = {}
        self._processing: set[K] = set()
        self._dirty: dict[K, Priority] = {}
        """Keys added while they are processed."""
        self._timers: dict[K, tuple[asyncio.TimerHandle, Priority]] = {}
        self._failures: dict[K, int] = {}
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        """Number of keys that wait for a worker."""
        return len(self._waiting)

    def add(self, key: K, priority: Priority = Priority.CHANGE) -> None:
        """Queue ``key`` now; this replaces a delayed add."""
        self._cancel(key)
        if key in self._processing:
            self._dirty[key] = min(priority, self._dirty.get(key, priority))
            return
        before = self._waiting.get(key)
        if before is not None and before <= priority:
            return
        if before is not None:
            del self._lanes[before][key]
        self._lanes[priority][key] = None
        self._waiting[key] = priority
        self._wake.set()

    def add_after(self, key: K, seconds: float, priority: Priority = Priority.CHANGE) -> None:
        """Queue ``key`` in ``seconds`` unless it is added before; the earlier of two delayed adds counts."""
        loop = asyncio.get_running_loop()
        when = loop.time() + seconds
        if (before := self._timers.get(key)) is not None:
            when, priority = min(when, before[0].when()), min(priority, before[1])
            if (when, priority) == (before[0].when(), before[1]):
                return
        self._cancel(key)
        self._timers[key] = loop.call_at(when, self.add, key, priority), priority

    def add_rate_limited(self, key: K, at_least: float = 0.0) -> float:
        """Queue ``key``, which failed, after its back-off: longer each time, with jitter. Returns the seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        seconds = max(backoff.delay(failures), at_least)
        self.add_after(key, seconds)
        return seconds

    def backs_off(self, key: K) -> bool:
        """Whether ``key`` failed, and waits for its back-off."""
        return key in self._failures and key in self._timers

    def forget(self, key: K) -> None:
        """Reset the back-off of ``key``, which succeeded."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """The next key, which no other worker gets until ``done`` is called for it."""
        while (lane := next(filter(None, self._lanes.values()), None)) is None:
            self._wake.clear()
            await self._wake.wait()
        key = next(iter(lane))
        del lane[key]
        del self._waiting[key]
        self._processing.add(key)
        return key

    def done(self, key: K) -> None:
        """Mark ``key`` as processed, and queue it again when it was added meanwhile."""
        self._processing.discard(key)
        if key in self._dirty:
            self.add(key, self._dirty.pop(key))

    def close(self) -> None:
        """Cancel all delayed adds."""
        for key in list(self._timers):
            self._cancel(key)

    def _cancel(self, key: K) -> None:
        if (timer := self._timers.pop(key, None)) is not None:
            timer[0].cancel()
