"""The endpoint with the fewest requests in flight from this router; ties go round.

The rotating start matters: with a fixed one an idle service sends everything to its first replica.
"""

from collections.abc import Sequence

from blade_router.endpoints import Endpoint
from blade_router.policies.base import Choice, Policy
from blade_router.request import ClientRequest


class LeastRequest(Policy):
    name = "least-request"

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        count = len(candidates)
        start = self._turn % count
        self._turn += 1
        best = candidates[start]
        for offset in range(1, count):
            endpoint = candidates[(start + offset) % count]
            if endpoint.in_flight < best.in_flight:
                best = endpoint
        return Choice(best, self.name)
