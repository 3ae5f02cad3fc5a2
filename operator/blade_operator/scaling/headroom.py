"""How much more than the forecast a service is prepared for: as much as its promise turns out to need.

A model of an engine is wrong by a bit. Rather than guess by how much, the share of requests that came too late, in
times in which load and engines did not change, is held at what the promise allows: ``margin`` grows while more are late
and shrinks, slowly, while fewer are. What comes faster than an engine starts is met by the floor (``floor.py``), which
is no higher than the highest rate of the last hour.

The update is that of adaptive conformal inference (Gibbs and Candes, "Adaptive Conformal Inference Under Distribution
Shift", NeurIPS 2021): in the long run the share is as promised whatever the distribution of the errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

FIRST: Final = 0.1
"""Margin before anything was measured: 10 % more than is expected."""
MARGINS: Final = (-0.3, 0.5)
MOST_FLOOR: Final = 2.0
"""The floor is at most so many times what is expected: a service that idles keeps no engines for its busy hours."""
AIM: Final = 0.8
"""Share of what may be late that is aimed at: the rest is for what never came before."""
_GAIN: Final = 0.006
"""Of a second and of a share of requests that is late beyond what is aimed at."""
_MOST_LATE: Final = 0.5
"""Of the requests, at once: so that one outage does not decide."""
_SECONDS: Final = 60.0
"""The most that counts for one measurement: of a longer time nothing is known."""
_HALF: Final = 1800.0
"""Seconds of each of the two parts of the hour that the highest rate is of."""


@dataclass(frozen=True, slots=True)
class Headroom:
    """What is planned for over what is expected."""

    at: float = 0.0
    margin: float = FIRST
    """The logarithm of the one over the other."""
    since: float = 0.0
    """When the present half hour began."""
    highest: float = 0.0
    """Rate of a minute in it."""
    before: float = 0.0
    """Highest rate of the half hour before."""

    @property
    def most(self) -> float:
        """The highest rate of the last hour."""
        return max(self.highest, self.before)

    def with_rate(self, at: float, rate: float) -> Headroom:
        """Also ``rate`` requests a second in the minute before ``at``."""
        age = at - self.since
        if not self.since or age < 0 or age >= 2 * _HALF:
            return Headroom(self.at, self.margin, at, rate, 0.0)
        if age >= _HALF:
            return Headroom(self.at, self.margin, at, rate, self.highest)
        return Headroom(self.at, self.margin, self.since, max(self.highest, rate), self.before)

    def with_late(self, at: float, late: float, allowed: float, *, steady: bool) -> Headroom:
        """After the share ``late`` of requests was late, of which ``allowed`` may be. ``steady``: in a time without
        changes; others say nothing of the margin."""
        passed = min(max(at - self.at, 0.0), _SECONDS) if self.at else 0.0
        error = min(late, _MOST_LATE) - AIM * allowed if steady else 0.0
        margin = min(MARGINS[1], max(MARGINS[0], self.margin + _GAIN * passed * error))
        return Headroom(at, margin, self.since, self.highest, self.before)

    def planned(self, expected: float, floor: float) -> float:
        """The rate to be prepared for when ``expected`` is forecast: no less than ``floor``, as far as that was seen in
        the last hour and is not far from what is expected."""
        return max(math.exp(self.margin) * expected, min(floor, self.most, MOST_FLOOR * expected))
