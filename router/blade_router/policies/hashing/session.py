"""Session affinity: a session stays on its endpoint, by the header ``x-session-id``, else by the body's ``user``.

Requests without either go where ``fallback`` sends them. A session whose endpoint is overloaded or gone spills over to
the next one on the hash ring, the same one each time.
"""

from collections.abc import Sequence

from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies.base import Choice, Policy
from blade_router.policies.hashing.hash_ring import HashRing, hash_key, session_key
from blade_router.request.request import ClientRequest


class Session(Policy):
    name = "session"
    sticky = True

    def __init__(self, fallback: Policy) -> None:
        self._fallback = fallback
        self._ring = HashRing()

    def choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        key = session_key(request)
        if not key:
            return self._fallback.choose(candidates, request)
        endpoint, skipped = self._ring.pick(hash_key(key), candidates)
        return Choice(endpoint, f"{self.name} skipped={skipped}" if skipped else self.name)

    def scores(self, candidates: Sequence[Endpoint], request: ClientRequest) -> dict[str, dict[str, float]]:
        return self._fallback.scores(candidates, request)

    def dry_run_copy(self) -> Policy:
        dry_run = Session(self._fallback.dry_run_copy())
        dry_run._ring = self._ring
        return dry_run

    def removed(self, endpoint: Endpoint) -> None:
        self._ring.remove(endpoint)
        self._fallback.removed(endpoint)
