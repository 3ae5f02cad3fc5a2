"""What an autoscaler remembers from one decision to the next, so that a restarted operator goes on where it was."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from blade_operator.scaling.capacity import Capacity
from blade_operator.scaling.forecast import Forecast

START_SECONDS: Final = 60.0
"""An engine is expected to start in this time until one was seen to."""
_PARTS: Final = 8
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
        kept = [(when, count) for when, count in self.peaks if at - when <= window and count > engines]
        part = window / _PARTS
        if kept and self.peaks[-1][1] == engines and at - self.peaks[-1][0] < part:
            kept.append(self.peaks[-1])  # nothing new: the memory need not be written
        else:
            kept.append((at, engines))
        return Peaks(self.since or at, tuple(kept))

    def most(self, at: float, window: float, engines: int) -> int:
        """The most in the last ``window`` seconds; of one that is not over yet ``engines``, as it is."""
        known = max((count for _, count in self.peaks), default=0)
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
class Memory:
    """Of one service."""

    capacity: Capacity = field(default_factory=Capacity)
    arrivals: Forecast = field(default_factory=Forecast)
    present: Forecast = field(default_factory=Forecast)
    peaks: Peaks = field(default_factory=Peaks)
    changes: Changes = field(default_factory=Changes)
    start_seconds: float = START_SECONDS
    """From the decision to an engine that answers."""
    busy_at: float = 0.0
    """When there was a request last."""
