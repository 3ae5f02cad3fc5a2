"""Recent requests of each endpoint: they decide between close scores, and when a prompt gets a second home.

Load alone cannot decide: on an idle service every endpoint has none, so the first would get every new prompt (and so
every prompt that ever comes back). And where each prompt has one home, popular homes would stay busier for good.

A request that an engine refuses stays counted: otherwise an engine that refuses everything would get everything.
"""

from collections.abc import Sequence
from typing import Final

from blade_router.endpoints.endpoint import Endpoint

HISTORY_REQUESTS: Final = 256
"""Requests per endpoint after which earlier ones count half."""
COLD_WEIGHT: Final = 4.0
"""Weight of an uncached prompt on top of its request: its next requests will come to the same endpoint."""
MOVE_SHARE: Final = 0.001
"""Share of requests that may go to a colder endpoint for balance: the most it costs in cache hits."""
MAX_SAVED_MOVES: Final = 6.0
IMBALANCE: Final = 1.07
"""An endpoint is overused from this multiple of the mean on (plus two requests, while there are few)."""
MAX_REQUEST_WEIGHT: Final = 4.0
"""The most that one request counts on a low-weight endpoint: its weight changes sooner than a count decays."""


class RequestHistory:
    """Decaying request counts of each endpoint."""

    def __init__(self) -> None:
        self.requests: dict[Endpoint, float] = {}
        self.cold: dict[Endpoint, float] = {}
        """Requests plus, with more weight, prompts that were new to the endpoint: the load still to come."""
        self._total = 0.0
        self._moves = MAX_SAVED_MOVES
        self._size = 0.0
        """Most blocks of a prompt that may move: one and a half times the mean size."""

    def add(self, candidates: Sequence[Endpoint]) -> None:
        """Start counting for new endpoints, from the mean of the others: from zero they would get every request."""
        requests, cold = self.requests, self.cold
        for endpoint in candidates:
            if endpoint not in requests:
                known = [each for each in candidates if each in requests]
                count = len(known) or 1
                requests[endpoint] = sum(requests[each] for each in known) / count
                cold[endpoint] = sum(cold[each] for each in known) / count
                self._total += requests[endpoint]

    def rebalance_target(self, candidates: Sequence[Endpoint], endpoint: Endpoint, blocks: float) -> int:
        """The position in ``candidates`` to send one of ``endpoint``'s prompts to when it is overused; -1: none.

        Only prompts of usual size move, to an endpoint that is no busier, and seldom.
        """
        if self._moves < 1 or blocks > self._size:
            return -1
        requests = self.requests
        recent = requests.__getitem__
        if recent(endpoint) <= (sum(map(recent, candidates)) / len(candidates) + 2) * IMBALANCE:
            return -1
        least = min(candidates, key=recent)
        return candidates.index(least) if least.in_flight <= endpoint.in_flight else -1

    def record(self, endpoint: Endpoint, size: float, cold: float, moved: bool) -> None:
        """Count a request that was sent to ``endpoint``.

        Args:
            size: the share of requests the endpoint is due, 1 for a usual one.
            cold: the part of it, 0 to 1, that was not cached.
            moved: it was sent there for balance only.
        """
        self._moves -= moved
        requests = self.requests
        one = 1.0 if size == 1.0 else min(1.0 / size, MAX_REQUEST_WEIGHT)
        requests[endpoint] += one
        self.cold[endpoint] += one * (1.0 + cold * COLD_WEIGHT)
        self._total += one
        if self._total > HISTORY_REQUESTS * len(requests):
            for each in requests:
                requests[each] /= 2
                self.cold[each] /= 2
            self._total = sum(requests.values())

    def served(self, blocks: float) -> None:
        """An engine serves a request whose prompt has so many blocks."""
        self._size = self._size + (blocks * 1.5 - self._size) / 64 if self._size else blocks * 1.5
        if self._moves < MAX_SAVED_MOVES:
            self._moves += MOVE_SHARE

    def removed(self, endpoint: Endpoint) -> None:
        if endpoint in self.requests:
            self._total -= self.requests.pop(endpoint)
            del self.cold[endpoint]
