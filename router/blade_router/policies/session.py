"""A session stays on its endpoint: by the header ``x-session-id``, else by the body's ``user``.

Requests without either go where ``otherwise`` sends them. A session whose endpoint is overloaded or gone spills over to
the next on the ring, the same one each time.
"""

import copy
from collections.abc import Sequence

from blade_router.endpoints import Endpoint
from blade_router.policies.base import Choice, Policy
from blade_router.policies.ring import Ring, hashed, session_key
from blade_router.request import ClientRequest


class Session(Policy):
    name = "session"

    def __init__(self, otherwise: Policy) -> None:
        self._otherwise = otherwise
        self._ring = Ring()

    def choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        key = session_key(request)
        if not key:
            return self._otherwise.choose(candidates, request)
        endpoint, skipped = self._ring.pick(hashed(key), candidates)
        return Choice(endpoint, f"{self.name} skipped={skipped}" if skipped else self.name)

    def scores(self, candidates: Sequence[Endpoint], request: ClientRequest) -> dict[str, dict[str, float]]:
        return self._otherwise.scores(candidates, request)

    def rehearsal(self) -> Policy:
        twin = copy.copy(self)
        twin._otherwise = self._otherwise.rehearsal()
        return twin

    def removed(self, endpoint: Endpoint) -> None:
        self._ring.remove(endpoint)
        self._otherwise.removed(endpoint)
