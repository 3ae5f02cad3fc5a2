"""The same beginning of a prompt, or the same session, on the same endpoint: of all routers, without any state.

The choice where many router replicas serve few, long prefixes. It knows nothing of what engines have cached, so a
shared system prompt longer than the key sends everything to one engine until the bound on its load spreads it.
"""

from collections.abc import Sequence

from blade_router.endpoints import Endpoint
from blade_router.policies.base import Choice, Policy
from blade_router.policies.ring import Ring, hashed, session_key
from blade_router.request import ClientRequest

KEY_BLOCKS = 4
"""How much of a prompt is the key: 1 KB, about 256 tokens."""


class ConsistentHash(Policy):
    name = "consistent-hash"

    def __init__(self) -> None:
        self._ring = Ring()

    def choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        session = session_key(request)
        key = hashed(session or b"%d" % request.prompt.key(KEY_BLOCKS))
        endpoint, skipped = self._ring.pick(key, candidates)
        reason = f"{self.name} key={'session' if session else 'prompt'}"
        return Choice(endpoint, f"{reason} skipped={skipped}" if skipped else reason)

    def removed(self, endpoint: Endpoint) -> None:
        self._ring.remove(endpoint)
