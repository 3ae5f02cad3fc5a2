"""When requests of an open loop arrive.

Independent users make a Poisson process: exponential gaps. A gamma distribution of the same mean generalises it by one
number, the shape, here called burstiness: 1 is Poisson, below 1 comes in bursts, above 1 is more regular.
"""

from __future__ import annotations

import random
from collections.abc import Iterator


def arrival_times(rate: float, burstiness: float, random_source: random.Random) -> Iterator[float]:
    """Seconds from the start, without end; the first is 0. ``rate`` per second (infinite: all at once).

    The coefficient of variation of the gaps is ``1 / sqrt(burstiness)``. Raises ``ValueError`` unless both are above 0.
    """
    if not rate > 0 or not burstiness > 0:
        raise ValueError(f"rate {rate} and burstiness {burstiness} must be above 0")
    scale = 1 / (rate * burstiness)
    now = 0.0
    while True:
        yield now
        now += random_source.gammavariate(burstiness, scale) if scale else 0.0
