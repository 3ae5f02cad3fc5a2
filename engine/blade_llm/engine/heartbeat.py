"""The engine process's sign of life during a step, from a thread of its own.

A step of a large model on few cores may take minutes, and the loop says nothing meanwhile. Then this thread shows the
API servers, in memory they share, that the step goes on: as long as the process computes, or another rank, which it
waits for. One that waits for ever (for a lock, for a disk that is gone) uses no CPU time, and one that computes for
ever is found in the end. On a GPU, where waiting looks like computing, there are no signs but the loop's own: a step
there takes seconds at most.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

BEAT_SECONDS: Final = 0.5
"""Between two signs of life."""
LEAST_SHARE: Final = 0.01
"""CPU time in that time, as a share, of a process that computes: on a busy machine it may not get more."""
MOST_STEP_SECONDS: Final = 1800.0
"""A step that takes longer does not end."""
_BYTES: Final = 8
_UTIME, _STIME = 11, 12
"""Fields of ``/proc/PID/stat`` behind the command's name: clock ticks."""


def cpu_seconds(pids: Iterable[int]) -> float:
    """Seconds of CPU time that other processes have used, as far as they live."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[_UTIME]) + int(fields[_STIME])
    return ticks / os.sysconf("SC_CLK_TCK")


def create_heartbeat() -> int:
    """A descriptor of anonymous memory for the time of the last sign of life, to be inherited."""
    descriptor = os.memfd_create("blade_llm-heartbeat")
    os.ftruncate(descriptor, _BYTES)
    return descriptor


def open_heartbeat(descriptor: int) -> memoryview[float]:
    """The time of the last sign of life, as its only item: seconds of the monotonic clock, 0 before the first."""
    return memoryview(mmap.mmap(descriptor, _BYTES)).cast("B").cast("d")


class Heartbeat:
    """Writes the time every ``interval`` seconds while a step goes on. An idle engine wakes nobody.

    Args:
        beat: see :func:`open_heartbeat`.
        cpu_time: seconds of CPU time that the process has used.
    """

    def __init__(
        self,
        beat: memoryview[float],
        *,
        interval: float = BEAT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        cpu_time: Callable[[], float] = time.process_time,
    ) -> None:
        self._beat = beat
        self._interval = interval
        self._clock = clock
        self._cpu_time = cpu_time
        self._began = 0.0
        self._busy = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def step_begins(self) -> None:
        """A step begins: nothing more is said of the one before."""
        self._began = self._clock()
        if not self._busy.is_set():
            self._busy.set()

    def idle(self) -> None:
        """There is nothing to do."""
        if self._busy.is_set():
            self._busy.clear()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._busy.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.is_set():
            self._busy.wait()
            used = self._cpu_time()
            if self._closed.wait(self._interval):
                break
            used = self._cpu_time() - used
            if used >= LEAST_SHARE * self._interval and self._clock() - self._began < MOST_STEP_SECONDS:
                self._beat[0] = self._clock()
