"""What endpoints got of late: decides between endpoints whose scores are close, and when a prompt gets a second home.

Load alone cannot: on an idle service every endpoint has none, and the first would get every new prompt (and so every
prompt that ever comes back). And where each prompt has one home, homes that happen to be popular stay busier for good.
"""

from collections.abc import Sequence
from typing import Final

from blade_router.endpoints import Endpoint

REMEMBERED: Final = 256
"""Requests per endpoint after which what happened counts half."""
COLD_WEIGHT: Final = 4.0
"""What a prompt that was not held counts for beside its request: it will come back to where it went."""
MOVE_SHARE: Final = 0.001
"""Share of requests that may go to a colder endpoint for the sake of balance: the most it costs in hits."""
MOVES_SAVED: Final = 6.0
UNEVEN: Final = 1.07
"""An endpoint is ahead from this multiple of the mean on (and two requests, while there are few)."""
HEAVIEST: Final = 4.0
"""The most a request counts on an endpoint that is due little: what it is due changes sooner than this is forgotten."""


class Balance:
    """Counts for each endpoint, of which old ones fade."""

    def __init__(self) -> None:
        self.requests: dict[Endpoint, float] = {}
        self.cold: dict[Endpoint, float] = {}
        """Requests and, with more weight, prompts that found a home here: what is still to come."""
        self._total = 0.0
        self._moves = MOVES_SAVED
        self._size = 0.0
        """Blocks of what is still a prompt of usual size: half as many again as the mean."""

    def join(self, candidates: Sequence[Endpoint]) -> None:
        """Start to count for endpoints that are new: from the mean, or they would get all there is."""
        requests, cold = self.requests, self.cold
        for endpoint in candidates:
            if endpoint not in requests:
                known = [each for each in candidates if each in requests]
                count = len(known) or 1
                requests[endpoint] = sum(requests[each] for each in known) / count
                cold[endpoint] = sum(cold[each] for each in known) / count
                self._total += requests[endpoint]

    def behind(self, candidates: Sequence[Endpoint], endpoint: Endpoint, blocks: float) -> int:
        """Where to send one of ``endpoint``'s prompts, for it has had too much: a place in ``candidates``; -1: nowhere.

        Only prompts of usual size move, to an endpoint that is no busier, and seldom.
        """
        if self._moves < 1 or blocks > self._size:
            return -1
        requests = self.requests
        recent = requests.__getitem__
        if recent(endpoint) <= (sum(map(recent, candidates)) / len(candidates) + 2) * UNEVEN:
            return -1
        least = min(candidates, key=recent)
        return candidates.index(least) if least.in_flight <= endpoint.in_flight else -1

    def count(self, endpoint: Endpoint, size: float, blocks: float, cold: float, moved: bool) -> None:
        """A request went there.

        Args:
            size: the share of requests the endpoint is due, 1 for a usual one.
            blocks: the prompt's size.
            cold: how much of it, 0 to 1, was not held.
            moved: it went there for the sake of balance only.
        """
        self._moves -= moved
        requests = self.requests
        one = 1.0 if size == 1.0 else min(1.0 / size, HEAVIEST)
        requests[endpoint] += one
        self.cold[endpoint] += one * (1.0 + cold * COLD_WEIGHT)
        self._total += one
        self._size = self._size + (blocks * 1.5 - self._size) / 64 if self._size else blocks * 1.5
        if self._moves < MOVES_SAVED:
            self._moves += MOVE_SHARE
        if self._total > REMEMBERED * len(requests):
            for each in requests:
                requests[each] /= 2
                self.cold[each] /= 2
            self._total = sum(requests.values())

    def removed(self, endpoint: Endpoint) -> None:
        if endpoint in self.requests:
            self._total -= self.requests.pop(endpoint)
            del self.cold[endpoint]
