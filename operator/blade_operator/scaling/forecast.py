"""Arrivals in the near future: as far ahead as an engine that is asked for now takes to start.

Holt's linear exponential smoothing: a level and a trend. A falling trend is not followed: what is there is kept until
it is known to be needless.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_LEVEL_SECONDS: Final = 30.0
"""In which two thirds of a change of the level are seen."""
_TREND_SECONDS: Final = 90.0
MOST_GROWTH: Final = 2.0
"""The forecast is at most so many times the present."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The level and trend of a rate."""

    at: float = 0.0
    level: float = 0.0
    trend: float = 0.0
    """Of a second."""

    def with_rate(self, at: float, rate: float) -> Forecast:
        """After ``rate`` was measured."""
        passed = at - self.at
        if not self.at or passed > 10 * _TREND_SECONDS or passed < 0:
            return Forecast(at, rate)
        if passed == 0:
            return self
        level_share = min(1.0, passed / _LEVEL_SECONDS)
        trend_share = min(1.0, passed / _TREND_SECONDS)
        level = self.level + self.trend * passed
        level += level_share * (rate - level)
        trend = self.trend + trend_share * ((level - self.level) / passed - self.trend)
        return Forecast(at, max(0.0, level), trend)

    def ahead(self, seconds: float, rate: float) -> float:
        """The rate so far ahead; no less than the present one, ``rate``."""
        expected = self.level + max(0.0, self.trend) * seconds
        return min(max(rate, expected), max(rate, self.level) * MOST_GROWTH)
