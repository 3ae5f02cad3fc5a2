"""The retry budget: how many retries there may be, and how long one waits, so that a fleet in trouble gets no storm."""

import asyncio
import random
from collections.abc import Callable

from blade_protocol import headers as names
from blade_router.http.errors import Headers, header_of
from blade_router.statistics.rates import Rate

BUDGET_SHARE = 0.2
"""Retries may be this share of the active traffic: requests that came in the last ten seconds, and those in flight."""
WINDOW = 10
"""Seconds over which traffic and retries are counted."""
MIN_RETRIES_PER_SECOND = 3
"""Retries per second that are always allowed."""
BASE_BACKOFF = 0.01
MAX_BACKOFF = 0.25
"""Seconds of the longest back-off before the first retry and before any; it is drawn between 0 and that."""

DRAINING = (names.DRAINING.encode(), b"1")
"""Among the headers of an engine's response: it takes nothing more, so the request goes to another one at once."""


class RetryBudget:
    """The budget for retries after a 5xx response or a time-out, where engines live and get more work by each of them.

    A failed connection and an engine that drains cost nothing: there nobody has worked, and the endpoint is no
    candidate any more. Nor does the first retry after a lost connection: an engine that dies takes many requests with
    it at the same moment, and all of them must find another.

    Args:
        traffic: how many requests came in the last ``WINDOW`` seconds or are in flight.
    """

    def __init__(self, traffic: Callable[[], int]) -> None:
        self._traffic = traffic
        self._spent = Rate(WINDOW)
        self.exhausted = 0
        """Retries that were not allowed."""

    def take(self, now: float) -> bool:
        """Another retry is allowed, and counted."""
        if self._spent.recent(now) >= MIN_RETRIES_PER_SECOND * WINDOW + BUDGET_SHARE * self._traffic():
            self.exhausted += 1
            return False
        self._spent.add(now)
        return True

    @staticmethod
    async def back_off(tries: int) -> None:
        """Wait before the retry that follows ``tries`` failed ones: exponential, with full jitter."""
        await asyncio.sleep(random.uniform(0.0, min(MAX_BACKOFF, BASE_BACKOFF * 2.0 ** (tries - 1))))


def retry_after_seconds(status: int, headers: Headers) -> float:
    """The seconds of an engine's ``Retry-After`` on a 503; 0 without one, or when it is a date."""
    if status != 503:
        return 0.0
    value = header_of(headers, b"retry-after")
    return float(value) if value.isdigit() else 0.0
