"""Power of two choices: the less loaded of two random endpoints.

Nearly as even as comparing all of them, and many routers at once do not all herd to the same one.
"""

import random
from collections.abc import Sequence

from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies.base import Choice, Policy
from blade_router.policies.load import MIN_WEIGHT
from blade_router.request.request import ClientRequest


class PowerOfTwo(Policy):
    name = "power-of-two"

    def __init__(self, rng: random.Random) -> None:
        self._random = rng.random

    def choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        count = len(candidates)
        first = int(self._random() * count)
        one = candidates[first]
        if count > 1:
            other = candidates[(first + 1 + int(self._random() * (count - 1))) % count]
            if (other.in_flight + 1) * max(one.health.weight, MIN_WEIGHT) < (one.in_flight + 1) * max(
                other.health.weight, MIN_WEIGHT
            ):
                one = other
        return Choice(one, self.name)
