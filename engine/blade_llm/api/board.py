"""The few numbers all front processes of one server share: how much each has open, what it measured, who drains.

A probe, a scrape or a request may reach any front, and each must answer for all of them. So the numbers lie in
anonymous shared memory (nothing is left behind, however the server ends): each front writes its own row, and all read
all rows. Eight aligned bytes are written at once, so no lock is needed.
"""

from __future__ import annotations

import mmap
import os
import time
from typing import Final, TypeAlias

from blade_llm.engine.client import VITALS

_DRAINING, _ENDING, _HEAD = range(3)
_SIZE: Final = 8
Row: TypeAlias = "memoryview[float]"
"""Numbers (float64) of one front."""


class Board:
    """Rows of one front each: its client's vitals, and ``width`` more numbers. All begin at 0.

    Args:
        descriptor: of the board another process made; None makes one.
    """

    def __init__(self, fronts: int, width: int, descriptor: int | None = None) -> None:
        self.descriptor: Final = os.memfd_create("blade_llm-fronts") if descriptor is None else descriptor
        """To be inherited by the other fronts."""
        stride = VITALS + width
        size = (_HEAD + fronts * stride) * _SIZE
        if descriptor is None:
            os.ftruncate(self.descriptor, size)
        numbers = memoryview(mmap.mmap(self.descriptor, size)).cast("B").cast("d")
        rows = [numbers[begin : begin + stride] for begin in range(_HEAD, len(numbers), stride)]
        self._head = numbers[:_HEAD]
        self.vitals: Final[list[Row]] = [row[:VITALS] for row in rows]
        """What each front's :class:`~blade_llm.engine.client.EngineClient` publishes."""
        self.counters: Final[list[Row]] = [row[VITALS:] for row in rows]

    @property
    def draining(self) -> bool:
        """No front takes new requests."""
        return bool(self._head[_DRAINING])

    def set_draining(self, value: bool) -> None:
        """Begin to drain, or take requests again, unless the server is about to end."""
        self._head[_DRAINING] = value or self._head[_ENDING]

    def end(self) -> None:
        """A signal came: drain, and never take that back."""
        self._head[_DRAINING] = self._head[_ENDING] = 1

    @property
    def num_open(self) -> int:
        """Engine requests of all fronts that have not finished."""
        return int(sum(vitals[0] for vitals in self.vitals))

    def stalled(self, timeout: float) -> bool:
        """A front has work and has heard nothing from the engine for ``timeout`` seconds."""
        now = time.monotonic()
        return any(num_open > 0 and now - last > timeout for num_open, last in self.vitals)
