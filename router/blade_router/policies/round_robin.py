"""Each endpoint in turn, whatever its load. Good when requests cost the same, and as a baseline."""

from collections.abc import Sequence

from blade_router.endpoints import Endpoint
from blade_router.request import ClientRequest


class RoundRobin:
    name = "round-robin"

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Endpoint:
        self._turn += 1
        return candidates[(self._turn - 1) % len(candidates)]
