"""Least request: the endpoint with the fewest in-flight requests of this router; ties rotate.

The rotating start matters: with a fixed one an idle service sends everything to its first replica.
"""

from collections.abc import Sequence

from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies.base import Choice, Policy
from blade_router.policies.load import MIN_WEIGHT
from blade_router.request.request import ClientRequest


class LeastRequest(Policy):
    name = "least-request"

    def __init__(self, turn: int = 0) -> None:
        self._turn = turn

    def dry_run_copy(self) -> Policy:
        return LeastRequest(self._turn)

    def choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        return Choice(self.least(candidates), self.name)

    def least(self, candidates: Sequence[Endpoint]) -> Endpoint:
        """Choose the endpoint itself, for policies that fall back to this one."""
        count = len(candidates)
        start = self._turn % count
        self._turn += 1
        best = candidates[start]
        load = (best.in_flight + 1) / max(best.health.weight, MIN_WEIGHT)
        for offset in range(1, count):
            endpoint = candidates[(start + offset) % count]
            its = (endpoint.in_flight + 1) / max(endpoint.health.weight, MIN_WEIGHT)
            if its < load:
                best, load = endpoint, its
        return best
