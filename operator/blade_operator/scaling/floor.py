"""A rate that a service is always prepared for, because bursts come faster than engines start.

How low the floor may be is learnt by asking, at each look, what each of several floors would have cost in late
requests: what arrives now meets the engines that were planned for as long ago as one takes to start, or the floor if
that is higher. The lowest floor with which as many are late as is aimed at is kept to. That is the newsvendor's
quantile, of all floors at once and not only of the one that was tried: a single burst says what each of them would have
been worth.
Where following the load is good enough the floor is zero; where bursts come again and again it is as high as the
promise needs, and no higher: the rest of a burst is met by engines that start.

What is known is forgotten exponentially, in an hour, and by requests: the promise is about these. The way in which the
share of late requests grows with the load is that of engines near what they can do (:data:`STEEP`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

STEEP: Final = 7.0
"""Power with which the share of late requests grows with the load over what engines can do within the targets: with
the TPOT of an engine that is busy to 60 to 70 % there, a seventh more makes about three times as many late."""
AS_PLANNED: Final = 0.5
"""Most of the share that may be late that counts while no more comes than was planned for: of these the margin takes
care, and a steady load is no reason for a floor."""
LEVELS: Final = 16
"""Floors that are compared: equal parts of the highest rate."""
_MEMORY: Final = 3600.0
"""Seconds in which two thirds of what is known are forgotten."""
_LONGEST: Final = 180.0
"""Seconds between two looks after which what was planned in between is unknown."""
_PARTS: Final = 20
"""Of the time in which an engine starts, and of that for which plans are kept: one is remembered for each."""


@dataclass(frozen=True, slots=True)
class Floor:
    """What each floor would have cost."""

    at: float = 0.0
    top: float = 0.0
    """The highest floor, in requests a second; the others are equal parts of it."""
    late: tuple[float, ...] = ()
    """Requests that would have been late with each of the floors, lowest first, of ..."""
    requests: float = 0.0
    """... so many."""
    plans: tuple[tuple[float, float], ...] = ()
    """When, and the rate that was planned for without a floor, oldest first."""

    def with_plan(self, at: float, planned: float, lead: float, kept: float) -> Floor:
        """Also that at ``at`` engines for ``planned`` requests a second were wanted, which are there ``lead`` seconds
        later. Plans are remembered for ``kept`` seconds."""
        plans = [each for each in self.plans if 0.0 < at - each[0] <= kept]
        part = lead / _PARTS
        if plans and plans[-1][0] // part == at // part:
            planned = max(planned, plans.pop()[1])
        met = sum(at - when >= lead for when, _ in plans)
        if met > 1 and plans[met - 1][0] - plans[met - 2][0] < kept / _PARTS:
            (when, one), (_, other) = plans[met - 2 : met]
            plans[met - 2 : met] = [(when, max(one, other))]
        return replace(self, plans=(*plans, (at, planned)))

    def with_rate(self, at: float, rate: float, highest: float, lead: float, allowed: float) -> Floor:
        """Also ``rate`` requests a second at ``at``, which met what was planned ``lead`` seconds before and earlier; so
        that of engines with just as many as they can have the share ``allowed`` is late. ``highest``: rate of the last
        hour."""
        passed = at - self.at
        if not self.at or not 0.0 <= passed <= _LONGEST:
            return replace(self, at=at, plans=())
        floor = self._fitted_to(highest)
        met = max((planned for when, planned in self.plans if at - when >= lead), default=None)
        if met is None or not floor.top:
            return replace(floor, at=at)
        keeps, count = math.exp(-passed / _MEMORY), rate * passed
        most = 1.0 if rate > met else AS_PLANNED * allowed
        without = min(most, allowed * _power(rate, met))
        late = tuple(
            keeps * known + count * (without if each <= met else min(most, allowed * _power(rate, each)))
            for known, each in zip(floor.late, floor._floors(), strict=True)
        )
        return replace(floor, at=at, late=late, requests=keeps * self.requests + count)

    def rate(self, share: float) -> float:
        """The lowest floor with which no more than ``share`` of the requests would have been late, interpolated; zero
        if that is so without one."""
        most = share * self.requests
        below, more = 0.0, math.inf
        for each, late in zip(self._floors(), self.late, strict=False):
            if late <= most:
                return each - (each - below) * (most - late) / (more - late) if math.isfinite(more) else 0.0
            below, more = each, late
        return self.top

    def without_lately(self) -> Floor:
        """Without what was planned lately."""
        return replace(self, at=0.0, plans=())

    def _fitted_to(self, highest: float) -> Floor:
        """With floors up to ``highest``, if that is more than before or less than half of it: what is known,
        interpolated."""
        if self.top / 2 <= highest <= self.top and len(self.late) == LEVELS:
            return self
        top = highest or self.top
        late = tuple(self._interpolated(top * (index + 1) / LEVELS) for index in range(LEVELS))
        return replace(self, top=top, late=late)

    def _floors(self) -> list[float]:
        return [self.top * (index + 1) / LEVELS for index in range(LEVELS)]

    def _interpolated(self, rate: float) -> float:
        """Late requests with a floor of ``rate``."""
        if not self.top or not self.late:
            return 0.0
        place = rate / self.top * len(self.late) - 1.0
        if place <= 0.0:
            return self.late[0]
        index = int(place)
        if index >= len(self.late) - 1:
            return self.late[-1]
        return self.late[index] + (place - index) * (self.late[index + 1] - self.late[index])


def _power(rate: float, planned: float) -> float:
    """Of ``rate`` over ``planned``; of more than a hundred times as much all is late anyway."""
    return math.pow(min(rate / max(planned, 1e-9), 100.0), STEEP)
