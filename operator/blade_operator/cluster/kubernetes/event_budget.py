"""A bound on Kubernetes Events: a service that flaps must not fill etcd, nor hide what others have to say."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from blade_operator.model.objects import Key

BURST: Final = 50
"""Events of one service at once."""
REFILL_SECONDS: Final = 60.0
"""Until one more may be emitted."""


class EventBudget:
    """A token bucket for each service, as client-go's spam filter has it, though with more room: that one allows 25
    Events of an object at once, and one in five minutes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._full_at: dict[Key, float] = {}
        """When the bucket of a service will be full again. One that is full needs no entry."""

    def take(self, key: Key) -> bool:
        """Whether one more Event about a service may be emitted; it counts then."""
        now = self._clock()
        full_at = max(now, self._full_at.get(key, now)) + REFILL_SECONDS
        if full_at - now > BURST * REFILL_SECONDS:
            return False
        if len(self._full_at) > 1000:
            self._full_at = {each: at for each, at in self._full_at.items() if at > now}
        self._full_at[key] = full_at
        return True
