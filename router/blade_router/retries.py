"""How many retries there may be, and how long one waits: a fleet that is in trouble must not get a storm on top."""

import asyncio
import random
from collections.abc import Callable

from blade_protocol import headers as names
from blade_router.errors import Headers, header_of
from blade_router.rates import Rate

SHARE = 0.2
"""Retries may be this share of the live traffic: requests that came in the last ten seconds, and those under way."""
WINDOW = 10
"""Seconds over which traffic and retries are counted."""
AT_LEAST = 3
"""Retries per second that are always allowed."""
FIRST_PAUSE = 0.01
MOST_PAUSE = 0.25
"""Seconds of the longest pause before the first retry and before any; the pause is drawn between 0 and that."""

DRAINING = (names.DRAINING.encode(), b"1")
"""Among the headers of an engine's answer: it takes nothing more, so another one is asked at once."""


class RetryBudget:
    """For retries after an answer of 5xx or a time-out, where engines live and get more work by each of them.

    A failed connection and an engine that drains cost nothing: there nobody has worked, and the endpoint is out of the
    choice at once. Nor does the first retry after a lost connection: an engine that dies takes many requests with it
    at the same moment, and all of them must find another.

    Args:
        traffic: how many requests came in the last ``WINDOW`` seconds or are under way.
    """

    def __init__(self, traffic: Callable[[], int]) -> None:
        self._traffic = traffic
        self._spent = Rate(WINDOW)
        self.exhausted = 0
        """Retries that were not allowed."""

    def take(self, now: float) -> bool:
        """Another retry is allowed, and counted."""
        if self._spent.recent(now) >= AT_LEAST * WINDOW + SHARE * self._traffic():
            self.exhausted += 1
            return False
        self._spent.add(now)
        return True

    @staticmethod
    async def pause(tries: int) -> None:
        """Wait before the retry that follows ``tries`` failed ones: exponential, with full jitter."""
        await asyncio.sleep(random.uniform(0.0, min(MOST_PAUSE, FIRST_PAUSE * 2.0 ** (tries - 1))))


def asked_to_wait(status: int, headers: Headers) -> float:
    """The seconds of an engine's ``Retry-After`` on a 503; 0 without one, or when it is a date."""
    if status != 503:
        return 0.0
    value = header_of(headers, b"retry-after")
    return float(value) if value.isdigit() else 0.0
