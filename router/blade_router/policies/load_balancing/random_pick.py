"""Random: any endpoint with equal probability. A baseline that many routers need no shared state for."""

import random
from collections.abc import Sequence

from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies.base import Choice, Policy
from blade_router.request.request import ClientRequest


class RandomPick(Policy):
    name = "random"

    def __init__(self, rng: random.Random) -> None:
        self._random = rng.random

    def choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        return Choice(candidates[int(self._random() * len(candidates))], self.name)
