"""Adapters on their way into host memory: files found or downloaded, then checked; then a queue for room; then read."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import wait
from typing import Final

from blade_llm.engine.adapters.entry import Adapter
from blade_llm.engine.adapters.files import AdapterFiles, unfinished
from blade_llm.engine.adapters.host_memory import HostMemory

WAIT_S: Final = 0.01
"""The longest that a step waits for an adapter when there is nothing else to do; a loaded one ends the wait."""
MOST_PENDING: Final = 64
"""Adapters that wait to be loaded, downloads included."""


class AdapterPipeline:
    """What is under way. The engine's thread calls everything; only files are dealt with on threads."""

    def __init__(self, files: AdapterFiles, host: HostMemory) -> None:
        self._files = files
        self._host = host
        self._preparing: list[Adapter] = []
        self.queue: deque[Adapter] = deque()
        """To be read, in order; the first waits for room."""
        self._reading: list[Adapter] = []

    def __iter__(self) -> Iterator[Adapter]:
        """All that are under way."""
        yield from (*self._preparing, *self.queue, *self._reading)

    @property
    def active(self) -> bool:
        """Whether anything is under way."""
        return bool(self._preparing or self.queue or self._reading)

    @property
    def full(self) -> bool:
        """Whether so many wait that no further one may."""
        return len(self._preparing) + len(self.queue) >= MOST_PENDING

    def prepare(self, adapter: Adapter) -> None:
        """Find its files, and check them if it is registered only."""
        adapter.files = self._files.prepare(adapter)
        self._preparing.append(adapter)

    def enqueue(self, adapter: Adapter) -> None:
        """Read it in its turn, unless it is under way already."""
        if adapter.weights is None and adapter.files is None and not adapter.queued:
            adapter.queued = True
            self.queue.append(adapter)

    def withdraw(self, adapter: Adapter) -> None:
        """Do not read it, if that has not begun."""
        if adapter.queued:
            adapter.queued = False
            self.queue.remove(adapter)

    def take_prepared(self) -> list[Adapter]:
        """Those whose files were found, or were not. Raises what lost ranks raise."""
        if self._preparing:
            self._files.poll()
        done = [adapter for adapter in self._preparing if adapter.files is not None and adapter.files.done()]
        for adapter in done:
            self._preparing.remove(adapter)
        return done

    def take_read(self) -> list[Adapter]:
        """Those that were read, or could not be. Raises what lost ranks raise."""
        if self._reading:
            self._files.poll()
        done = [adapter for adapter in self._reading if adapter.weights is not None and adapter.weights.done()]
        for adapter in done:
            self._reading.remove(adapter)
        return done

    def begin(self) -> tuple[bool, list[Adapter]]:
        """Read the first of the queue as far as host memory has room; whether any began, and which others left."""
        evicted: list[Adapter] = []
        began = False
        while self.queue:
            room = self._host.make_room(len(self._reading))
            if room is False:
                break
            if isinstance(room, Adapter):
                evicted.append(room)
            adapter = self.queue.popleft()
            adapter.queued = False
            adapter.weights = self._files.read(adapter)
            self._reading.append(adapter)
            began = True
        return began, evicted

    def wait(self) -> None:
        """Wait a moment for one of them."""
        if futures := unfinished((*self._preparing, *self._reading)):
            wait(futures, WAIT_S, "FIRST_COMPLETED")
