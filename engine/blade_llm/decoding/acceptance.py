"""How often draft tokens are accepted: estimated online, with an upper confidence bound while little is known.

The bound is that of UCB1 (Auer et al., "Finite-time analysis of the multiarmed bandit problem", 2002), on counts that
are decayed, so that a change of the text is noticed.
"""

from __future__ import annotations

import math
from typing import Final

_MOST: Final = 400.0
"""Observations that a rate remembers: older ones fade."""
_CONFIDENCE: Final = 0.5
"""Weight of the bound; 1 is UCB1's."""


class AcceptanceRate:
    """The share of draft tokens that are accepted, of those whose predecessors all were."""

    __slots__ = ("_accepted", "_count")

    def __init__(self, prior: float = 0.7, weight: float = 2.0) -> None:
        """``prior``: the rate before anything was observed, which counts as ``weight`` observations."""
        self._accepted = prior * weight
        self._count = weight

    @property
    def mean(self) -> float:
        return self._accepted / self._count

    @property
    def observations(self) -> float:
        return self._count

    def upper(self, trials: float) -> float:
        """The upper confidence bound after ``trials`` observations of all rates together."""
        bonus = _CONFIDENCE * math.sqrt(math.log(max(trials, 2.0)) / (2.0 * self._count))
        return min(0.98, self.mean + bonus)

    def observe(self, accepted: int, rejected: bool) -> None:
        """``accepted`` tokens in a row were accepted, and the next one rejected, if there was another."""
        seen = accepted + rejected
        if self._count + seen > _MOST:
            keep = (_MOST - seen) / self._count
            self._accepted *= keep
            self._count *= keep
        self._accepted += accepted
        self._count += seen
