"""Arrivals in the near future: as far ahead as an engine that is asked for now takes to start.

Holt's linear exponential smoothing (1957): a level and a trend. A measurement that cannot be chance, of so many
arrivals, is believed at once: a burst is seen when it comes, while the noise of a steady rate is smoothed. A step
between two looks is seen as two rises, so that after one that is no chance a third rise has to come before it is a
trend. A trend is expected to last for as long as it has lasted (Gott, "Implications of the Copernican principle for our
future prospects", Nature 1993). A falling one is not followed: what is there is kept until it is known to be needless.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_LEVEL_SECONDS: Final = 40.0
"""In which two thirds of a change of the level are seen."""
_TREND_SECONDS: Final = 30.0
_LONGEST: Final = 900.0
"""Seconds after which what was known is forgotten."""
_CHANCE: Final = 4.0
"""Standard deviations of a count beyond which a measurement is no chance."""
_DISPERSION_SHARE: Final = 0.05
"""Of a new measurement in what is known of chance."""
MOST_GROWTH: Final = 2.0
"""The forecast is at most so many times the present."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The level and trend of a rate."""

    at: float = 0.0
    level: float = 0.0
    trend: float = 0.0
    """Of a second."""
    slope: float = 0.0
    """From the measurement before to the last one, a second."""
    slope_before: float = 0.0
    """The same of the measurement before."""
    stepped: bool = False
    """The last measurement was believed at once."""
    rising: float = 0.0
    """Seconds for which the level has risen at each measurement, without the first one's."""
    dispersion: float = 1.0
    """Variance of the counts over a Poisson process's: more than 1 where requests come in clusters."""

    def with_rate(self, at: float, rate: float, counted: float = 0.0) -> Forecast:
        """After ``rate`` was measured, in the last ``counted`` seconds (0: it is no count, and smoothed only)."""
        passed = at - self.at
        if not self.at or passed > _LONGEST or passed < 0:
            return Forecast(at, rate)
        if passed == 0:
            return self
        expected = self.level + self.trend * passed
        share, dispersion = min(1.0, passed / _LEVEL_SECONDS), self.dispersion
        if counted:
            variance = max(expected, 1.0 / counted) / counted
            surprise = (rate - expected) ** 2 / variance
            share = max(share, min(1.0, surprise / (_CHANCE**2 * dispersion)))
            dispersion += _DISPERSION_SHARE * (min(surprise, _CHANCE**2) - dispersion)
            dispersion = max(1.0, dispersion)
        level = max(0.0, expected + share * (rate - expected))
        trend_share = max(share, min(1.0, passed / _TREND_SECONDS))
        slope = (level - self.level) / passed
        # A burst is a step: only what rises twice in a row is a trend, and a step may look like two rises.
        least = min(slope, max(0.0, self.slope))
        stepped = share >= 1.0
        if stepped or self.stepped:
            least = min(least, max(0.0, self.slope_before))
        trend = self.trend + trend_share * (least - self.trend)
        rising = self.rising + passed if slope > 0.0 and self.slope > 0.0 else 0.0
        return Forecast(at, level, trend, slope, self.slope, stepped, rising, dispersion)

    def ahead(self, seconds: float) -> float:
        """The rate so far ahead; no less than the present level."""
        expected = self.level + max(0.0, self.trend) * min(seconds, self.rising)
        return min(expected, self.level * MOST_GROWTH)
