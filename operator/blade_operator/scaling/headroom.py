"""How much more than the forecast a service is prepared for: as much as its promise turns out to need.

A model of an engine is wrong by a bit, and a forecast is now and then wrong by much. Rather than guess by how much, the
share of requests that came too late is held at what the promise allows. Two numbers grow while more are late and
shrink, slowly, while fewer are:

- ``margin``, from times in which load and engines did not change: how much the model of an engine is wrong;
- ``spare``, from times in which they did: for what comes faster than an engine starts. It plans for no more than was
  seen in the last hour, so that a service with bursts comes to keep engines for the next one, and a steady one does
  not.

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
MOST_SPARE: Final = 1.4
"""Four times what is expected."""
AIM: Final = 0.8
"""Share of what may be late that is aimed at: the rest is for what never came before."""
_GAIN: Final = 0.006
"""Of a second and of a share of requests that is late beyond what is aimed at."""
_FORGETTING: Final = 0.15
"""Share of what may be late by which a spare shrinks that is not needed: slowly, the next burst may be an hour away."""
_MOST_LATE: Final = 0.5
"""Of the requests, at once: so that one outage does not decide."""
_SECONDS: Final = 60.0
"""The most that counts for one measurement: of a longer time nothing is known."""
_HALF: Final = 1800.0
"""Seconds of each of the two parts of the hour that the highest rate is of."""


@dataclass(frozen=True, slots=True)
class Headroom:
    """Logarithms of what is planned for over what is expected."""

    at: float = 0.0
    margin: float = FIRST
    spare: float = 0.0
    since: float = 0.0
    """When the present half hour began."""
    highest: float = 0.0
    """Rate in it."""
    before: float = 0.0
    """Highest rate of the half hour before."""

    def with_rate(self, at: float, rate: float) -> Headroom:
        """Also ``rate`` requests a second at ``at``."""
        age = at - self.since
        if not self.since or age < 0 or age >= 2 * _HALF:
            return Headroom(self.at, self.margin, self.spare, at, rate, 0.0)
        if age >= _HALF:
            return Headroom(self.at, self.margin, self.spare, at, rate, self.highest)
        return Headroom(self.at, self.margin, self.spare, self.since, max(self.highest, rate), self.before)

    def with_late(self, at: float, late: float, allowed: float, *, steady: bool) -> Headroom:
        """After the share ``late`` of requests was late, of which ``allowed`` may be. ``steady``: in a time without
        changes."""
        passed = min(max(at - self.at, 0.0), _SECONDS) if self.at else 0.0
        late = min(late, _MOST_LATE)
        margin, spare = self.margin, self.spare
        error = late - AIM * allowed
        if steady:
            margin += _GAIN * passed * error
            spare -= _GAIN * passed * _FORGETTING * allowed
        else:
            spare += _GAIN * passed * error
        return Headroom(
            at,
            min(MARGINS[1], max(MARGINS[0], margin)),
            min(MOST_SPARE, max(0.0, spare)),
            self.since,
            self.highest,
            self.before,
        )

    def planned(self, expected: float) -> float:
        """The rate to be prepared for when ``expected`` is forecast."""
        highest = max(self.highest, self.before)
        return math.exp(self.margin) * max(expected, min(math.exp(self.spare) * expected, highest))
