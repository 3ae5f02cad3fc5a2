"""Generates the load: users who each wait for their response (closed loop), or arrivals that wait for nothing (open
loop).

An open loop shows what a service sees; a closed loop slows down with the server and so hides queues, but finds its
highest throughput.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from blade_llm.benchmark.client.client import Clock
from blade_llm.benchmark.client.measurement import Measurement
from blade_llm.benchmark.workload.datasets import Sample

Send = Callable[[Sample, float], Awaitable[Measurement]]
"""Sends one sample that was due at a time, and measures it; does not raise."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Limit after which no request is sent; requests in flight are awaited."""

    requests: float = math.inf
    seconds: float = math.inf


@dataclass(slots=True)
class Load:
    """One measured load. Its fields are right at any time, also after it was cancelled."""

    send: Send
    clock: Clock = time.perf_counter
    cpu_clock: Clock = time.process_time
    on_change: Callable[[Load], None] = lambda load: None
    """Called after each sent and each ended request."""
    finished: list[Measurement] = field(default_factory=list)
    sent: int = 0
    started: float = 0.0
    ended: float | None = None
    cpu_seconds: float = 0.0
    """CPU time of this process, from start to end."""

    @property
    def in_flight(self) -> int:
        """Sent and not ended; after a cancellation, given up."""
        return self.sent - len(self.finished)

    @property
    def seconds(self) -> float:
        """Duration from the start to the end, or to now."""
        return (self.clock() if self.ended is None else self.ended) - self.started

    async def closed_loop(self, samples: Iterator[Sample], users: int, limit: Limit) -> None:
        """Keep ``users`` requests in flight; each response is followed by the next request at once."""

        async def user() -> None:
            while self.sent < limit.requests and self.clock() - self.started < limit.seconds:
                await self._one(next(samples), self.clock())

        await self._measured(lambda group: [group.create_task(user()) for _ in range(users)])

    async def open_loop(self, samples: Iterator[Sample], arrivals: Iterator[float], limit: Limit) -> None:
        """Send a request at each of ``arrivals`` (seconds from the start), however many are in flight."""

        async def arrive(group: asyncio.TaskGroup) -> None:
            for after in arrivals:
                if self.sent >= limit.requests or after >= limit.seconds:
                    break
                due = self.started + after
                sample = next(samples)
                if (wait := due - self.clock()) > 0:
                    await asyncio.sleep(wait)
                self.sent += 1
                group.create_task(self._send(sample, due))

        await self._measured(lambda group: group.create_task(arrive(group)))

    async def _measured(self, start: Callable[[asyncio.TaskGroup], object]) -> None:
        cpu = self.cpu_clock()
        self.started = self.clock()
        try:
            async with asyncio.TaskGroup() as group:
                start(group)
        finally:
            self.ended = self.clock()
            self.cpu_seconds = self.cpu_clock() - cpu

    async def _one(self, sample: Sample, due: float) -> None:
        self.sent += 1
        await self._send(sample, due)

    async def _send(self, sample: Sample, due: float) -> None:
        self.on_change(self)
        self.finished.append(await self.send(sample, due))
        self.on_change(self)
