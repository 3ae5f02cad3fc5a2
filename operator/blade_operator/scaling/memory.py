"""What an autoscaler remembers from one decision to the next, so that a restarted operator goes on where it was."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Final

from blade_operator.scaling.capacity import Capacity
from blade_operator.scaling.floor import Floor
from blade_operator.scaling.forecast import Forecast
from blade_operator.scaling.headroom import Headroom
from blade_operator.scaling.lengths import Lengths
from blade_operator.scaling.load import Load

START_SECONDS: Final = 60.0
"""An engine is expected to start in this time until one was seen to."""
WINDOW: Final = 60.0
"""Seconds that rates and percentiles are of."""
_ALIKE: Final = 0.2
"""Share by which the rate of a minute may differ from the present one."""
_PARTS: Final = 16
"""Of a window: what was needed is remembered for each."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """The most engines that were needed, lately."""

    since: float = 0.0
    """Nothing is known of the time before."""
    peaks: tuple[tuple[float, int], ...] = ()
    """When, and how many; later ones are smaller."""

    def with_need(self, at: float, engines: int, window: float) -> Peaks:
        """Also ``engines`` at ``at``; what was more than ``window`` seconds ago is forgotten."""
        part = window / _PARTS
        kept = [(when, count) for when, count in self.peaks if at - when <= window + part and count > engines]
        last = self.peaks[-1] if self.peaks else (-math.inf, 0)
        if last[1] == engines and at - last[0] < part:
            kept.append(last)  # nothing new: the memory need not be written
        elif not kept or at - kept[-1][0] >= part:
            kept.append((at, engines))
        # Else the larger one of the same part stands for both.
        return Peaks(self.since or at, tuple(kept))

    def most(self, at: float, window: float, engines: int) -> int:
        """The most in the last ``window`` seconds, no more than what is remembered; of one that is not over yet
        ``engines``, as it is."""
        part = window / _PARTS
        known = max((count for when, count in self.peaks if at - when <= window + part), default=0)
        return known if at - self.since >= window else max(known, engines)


@dataclass(frozen=True, slots=True)
class Changes:
    """Recent changes of the number of engines, by which its speed is limited."""

    entries: tuple[tuple[float, int], ...] = ()
    """When, and how many there were before."""

    def with_change(self, at: float, before: int, window: float) -> Changes:
        """Also that there were ``before`` at ``at``."""
        return Changes((*(each for each in self.entries if at - each[0] < window), (at, before)))

    def lowest(self, at: float, window: float, engines: int) -> int:
        """The fewest engines in the last ``window`` seconds, ``engines`` now."""
        return min([engines, *(count for when, count in self.entries if at - when < window)])

    def highest(self, at: float, window: float, engines: int) -> int:
        """The most engines."""
        return max([engines, *(count for when, count in self.entries if at - when < window)])


@dataclass(frozen=True, slots=True)
class Steady:
    """Since when so many engines have had about the same load: only then do the latencies of a minute belong
    to them."""

    since: float = 0.0
    ready: int = 0

    def with_load(self, load: Load, rate: float) -> Steady:
        """After ``load``, of which ``rate`` requests a second come at present."""
        alike = abs(rate - load.arrivals) <= _ALIKE * load.arrivals
        return self if load.ready == self.ready and alike else Steady(load.at, load.ready)

    def lasts(self, at: float) -> bool:
        """Whether it has been so for as long as latencies are of."""
        return at - self.since >= WINDOW


@dataclass(frozen=True, slots=True)
class Memory:
    """Of one service."""

    capacity: Capacity = field(default_factory=Capacity)
    arrivals: Forecast = field(default_factory=Forecast)
    present: Forecast = field(default_factory=Forecast)
    peaks: Peaks = field(default_factory=Peaks)
    changes: Changes = field(default_factory=Changes)
    falling: bool = False
    """The last change was to fewer engines."""
    start_seconds: float = START_SECONDS
    """From the decision to an engine that answers."""
    busy_at: float = 0.0
    """When there was a request last."""
    at: float = 0.0
    """When was decided last."""
    headroom: Headroom = field(default_factory=Headroom)
    steady: Steady = field(default_factory=Steady)
    lengths: Lengths = field(default_factory=Lengths)
    floor: Floor = field(default_factory=Floor)

    def without_lately(self, at: float) -> Memory:
        """Without what was needed and done before ``at``, of which nothing is known: waiting begins anew."""
        floor = self.floor.without_lately()
        return replace(self, peaks=Peaks(), changes=Changes(), falling=False, busy_at=at, floor=floor)
