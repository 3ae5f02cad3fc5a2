"""What the routers and engines of a service reported, at one time."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """Rates and percentiles are of the last minute. A load that nobody reported is no Load: nothing is decided."""

    at: float
    """Seconds since the epoch."""
    ready: int
    """Engines that answer requests."""
    starting: int = 0
    """Engines that are to be ready soon."""
    idle: float | None = None
    """Seconds since the last request, whether an engine got it or not; None: not every router says."""
    running: float = 0.0
    """Requests at engines."""
    queued: float = 0.0
    """Requests that wait in the routers, for a place at an engine or for the first engine."""
    arrivals: float = 0.0
    """Requests a second."""
    recent_arrivals: float | None = None
    """The same since the decision before, from which a change is seen sooner; None: not known."""
    prompt_tokens: float = 0.0
    """A second, without those that came from a prefix cache."""
    completion_tokens: float = 0.0
    """A second."""
    ttft: float | None = None
    """Seconds, at the percentile that the service promises; None: nothing was measured."""
    tpot: float | None = None
    """The same from one token to the next."""
    mean_tpot: float | None = None
    """The median, from which the speed of engines is learnt."""
    late: float | None = None
    """Share of the requests that were not within both targets; None: not known, and estimated from percentiles."""

    @property
    def is_sound(self) -> bool:
        """Whether all numbers are finite and none is negative: what is not says nothing about the service."""
        numbers = (
            self.ready,
            self.starting,
            self.running,
            self.queued,
            self.arrivals,
            self.prompt_tokens,
            self.completion_tokens,
            *(
                each
                for each in (self.recent_arrivals, self.ttft, self.tpot, self.mean_tpot, self.late)
                if each is not None
            ),
        )
        return math.isfinite(self.at) and all(0.0 <= each < math.inf for each in numbers)

    @property
    def present(self) -> float:
        """Requests that the service has: at engines and waiting."""
        return self.running + self.queued

    @property
    def engines(self) -> int:
        """Engines that there are, or will be without a further decision."""
        return self.ready + self.starting
