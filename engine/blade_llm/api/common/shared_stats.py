"""Numbers that all API-server processes of one server share: open requests, latencies, whether it drains.

A probe, a scrape or a request may reach any of the processes, and each has to speak for all of them. So the numbers
are in anonymous shared memory (nothing is left behind, however the server ends): each process writes its own row and
reads all rows. Eight aligned bytes are written at once, so no lock is needed.
"""

from __future__ import annotations

import mmap
import os
import time
from typing import Final, TypeAlias

from blade_llm.engine.client import HEARTBEAT_SIZE

_DRAINING, _SHUTTING_DOWN, _HEAD = range(3)
_SIZE: Final = 8
StatsRow: TypeAlias = "memoryview[float]"
"""Numbers (float64) of one API-server process."""


class SharedStats:
    """One row for each of ``count`` processes: its client's heartbeat and ``width`` counters. All begin at 0.

    Args:
        descriptor: file descriptor of the memory that another process made; None makes it.
        engine_beat: when the engine last showed that a step goes on, as :func:`open_heartbeat` returns it; None: never.
    """

    def __init__(
        self, count: int, width: int, descriptor: int | None = None, engine_beat: StatsRow | None = None
    ) -> None:
        self._engine_beat: StatsRow | list[float] = [0.0] if engine_beat is None else engine_beat
        self.descriptor: Final = os.memfd_create("blade_llm-shared-stats") if descriptor is None else descriptor
        """To be inherited by the other processes."""
        stride = HEARTBEAT_SIZE + width
        size = (_HEAD + count * stride) * _SIZE
        if descriptor is None:
            os.ftruncate(self.descriptor, size)
        numbers = memoryview(mmap.mmap(self.descriptor, size)).cast("B").cast("d")
        rows = [numbers[begin : begin + stride] for begin in range(_HEAD, len(numbers), stride)]
        self._head = numbers[:_HEAD]
        self.heartbeats: Final[list[StatsRow]] = [row[:HEARTBEAT_SIZE] for row in rows]
        """What the :class:`~blade_llm.engine.client.EngineClient` of each process publishes."""
        self.counters: Final[list[StatsRow]] = [row[HEARTBEAT_SIZE:] for row in rows]

    @property
    def draining(self) -> bool:
        """Whether all processes refuse new requests."""
        return bool(self._head[_DRAINING])

    def set_draining(self, value: bool) -> None:
        """Drain, or accept requests again unless the server shuts down."""
        self._head[_DRAINING] = value or self._head[_SHUTTING_DOWN]

    def shut_down(self) -> None:
        """Drain for good, after a signal."""
        self._head[_DRAINING] = self._head[_SHUTTING_DOWN] = 1

    @property
    def num_open(self) -> int:
        """Unfinished engine requests of all processes."""
        return int(sum(heartbeat[0] for heartbeat in self.heartbeats))

    def stalled(self, timeout: float) -> bool:
        """Whether a process has open requests and no message or heartbeat of the engine for ``timeout`` seconds."""
        since = time.monotonic() - timeout
        return self._engine_beat[0] < since and any(num_open > 0 and last < since for num_open, last in self.heartbeats)
