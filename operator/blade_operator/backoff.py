"""How long to wait before something that did not work is tried again."""

from __future__ import annotations

import random

FIRST = 0.2
MOST = 60.0


def pause(times: int) -> float:
    """Seconds, with jitter, when it had failed ``times`` times before: twice as long each time, up to a minute."""
    return min(MOST, FIRST * 2.0 ** min(times, 20)) * random.uniform(0.8, 1.2)
