"""A queue of names to look at: each waits in it once, one worker at a time has it, and it backs off on failure.

What changed goes before what is looked at as a matter of routine, so that a thousand services at rest delay nobody.
"""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from blade_operator import backoff

K = TypeVar("K")


class WorkQueue(Generic[K]):
    """Keys added while they wait, or while they are worked on, are looked at once more, not more often."""

    def __init__(self) -> None:
        self._ready: dict[K, None] = {}
        self._routine: dict[K, None] = {}
        self._busy: set[K] = set()
        self._again: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        """Keys that wait for a worker."""
        return len(self._ready) + len(self._routine)

    def add(self, key: K, *, routine: bool = False) -> None:
        """Look at ``key`` now; an appointment for later is dropped."""
        self._cancel(key)
        if key in self._busy:
            self._again.add(key)
            return
        if not routine:
            self._routine.pop(key, None)
            self._ready[key] = None
        elif key not in self._ready:
            self._routine[key] = None
        self._wake.set()

    def add_after(self, key: K, seconds: float, *, routine: bool = False) -> None:
        """Look at ``key`` in ``seconds`` unless it comes up before; the earlier of two appointments counts."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None and timer.when() <= loop.time() + seconds:
            return
        self._cancel(key)
        self._timers[key] = loop.call_later(seconds, lambda: self.add(key, routine=routine))

    def retry(self, key: K, at_least: float = 0.0) -> float:
        """``key`` failed: look again later each time, up to a minute, with jitter. Returns the seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        seconds = max(backoff.pause(failures), at_least)
        self.add_after(key, seconds)
        return seconds

    def forget(self, key: K) -> None:
        """``key`` succeeded: its next failure starts from the shortest back-off."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """The next key, now the caller's until it calls ``done``."""
        while not (lane := self._ready or self._routine):
            self._wake.clear()
            await self._wake.wait()
        key = next(iter(lane))
        del lane[key]
        self._busy.add(key)
        return key

    def done(self, key: K) -> None:
        """The work on ``key`` has ended."""
        self._busy.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def close(self) -> None:
        """Drop all appointments."""
        for key in list(self._timers):
            self._cancel(key)

    def _cancel(self, key: K) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
