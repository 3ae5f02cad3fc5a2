"""The longest cached prefix wins unless its endpoint is overloaded; without a match, least request decides.

Simpler than ``auto`` and easier to predict. It counts nothing but requests, so it balances prompts of very different
length less well.
"""

from collections.abc import Sequence

from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies.base import Choice, Policy
from blade_router.policies.hashing.hash_ring import LOAD_FACTOR
from blade_router.policies.load import load_limit
from blade_router.policies.load_balancing.least_request import LeastRequest
from blade_router.policies.prefix_cache.choice import PrefixChoice
from blade_router.policies.prefix_cache.interface import PrefixCacheIndex
from blade_router.request.prompt_text import BLOCK, BYTES_PER_TOKEN
from blade_router.request.request import ClientRequest


class Prefix(Policy):
    name = "prefix"

    def __init__(self, index: PrefixCacheIndex) -> None:
        self._index = index
        self._fallback = LeastRequest()

    def choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        chain = request.prompt.chain
        matched = self._index.match(chain, candidates)
        room = load_limit(candidates, LOAD_FACTOR)
        place = -1
        for at, endpoint in enumerate(candidates):
            cached = matched[at]
            if cached and endpoint.in_flight < room * endpoint.health.weight:
                ahead = cached - matched[place] if place >= 0 else 1
                if ahead > 0 or (ahead == 0 and endpoint.in_flight < candidates[place].in_flight):
                    place = at
        if place < 0:
            place = candidates.index(self._fallback.least(candidates))
        endpoint, cached = candidates[place], matched[place]
        return PrefixChoice(
            endpoint,
            f"{self.name} prefix={cached}/{len(chain)} in_flight={endpoint.in_flight}",
            self._index,
            chain,
            cached,
            (request.prompt.size - cached * BLOCK) // BYTES_PER_TOKEN,
        )

    def scores(self, candidates: Sequence[Endpoint], request: ClientRequest) -> dict[str, dict[str, float]]:
        matched = self._index.match(request.prompt.chain, candidates)
        return {
            endpoint.name: {"cached_blocks": float(cached), "in_flight": float(endpoint.in_flight)}
            for endpoint, cached in zip(candidates, matched, strict=True)
        }
