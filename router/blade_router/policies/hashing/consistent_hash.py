"""Consistent hashing: equal prompt beginnings, or one session, go to one endpoint from every router, without state.

Fits many router replicas that serve few, long prefixes. It does not know what engines have cached, so a shared system
prompt longer than the key sends everything to one engine until the load bound spreads it.
"""

from collections.abc import Sequence

from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies.base import Choice, Policy
from blade_router.policies.hashing.hash_ring import HashRing, hash_key, session_key
from blade_router.request.request import ClientRequest

KEY_BLOCKS = 4
"""Blocks of the prompt that make the key: 1 KB, about 256 tokens."""


class ConsistentHash(Policy):
    name = "consistent-hash"
    sticky = True

    def __init__(self) -> None:
        self._ring = HashRing()

    def choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        session = session_key(request)
        key = hash_key(session or b"%d" % request.prompt.key(KEY_BLOCKS))
        endpoint, skipped = self._ring.pick(key, candidates)
        reason = f"{self.name} key={'session' if session else 'prompt'}"
        return Choice(endpoint, f"{reason} skipped={skipped}" if skipped else reason)

    def removed(self, endpoint: Endpoint) -> None:
        self._ring.remove(endpoint)
