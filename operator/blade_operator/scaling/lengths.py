"""How long responses are. When requests become more, their tokens come later than they: the minute in which a burst
begins has too few tokens for its requests, and the load would seem lighter than it is and the engines fuller."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from blade_operator.scaling.load import Load

_MEMORY: Final = 300.0
"""Seconds in which two thirds of what is known are forgotten."""
_LONGEST: Final = 60.0
"""Seconds that one look counts for at most."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Sums over time, of which older ones weigh less."""

    at: float = 0.0
    completion: float = 0.0
    """Tokens."""
    requests: float = 0.0

    def with_load(self, load: Load) -> Lengths:
        """Also those of ``load``."""
        passed = min(max(load.at - self.at, 0.0), _LONGEST) if self.at else _LONGEST
        keeps = math.exp(-passed / _MEMORY)
        return Lengths(
            load.at,
            keeps * self.completion + passed * load.completion_tokens,
            keeps * self.requests + passed * load.arrivals,
        )

    def of(self, load: Load) -> Load:
        """``load``, with as many completion tokens as its requests have in the long run."""
        if self.requests <= 0.0:
            return load
        return replace(load, completion_tokens=load.arrivals * self.completion / self.requests)
