"""Round robin: each endpoint in turn, whatever its load. Fits requests of equal cost, and is a baseline."""

from collections.abc import Sequence

from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies.base import Choice, Policy
from blade_router.request.request import ClientRequest


class RoundRobin(Policy):
    name = "round-robin"

    def __init__(self, turn: int = 0) -> None:
        self._turn = turn

    def dry_run_copy(self) -> Policy:
        return RoundRobin(self._turn)

    def choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        self._turn += 1
        return Choice(candidates[(self._turn - 1) % len(candidates)], self.name)
