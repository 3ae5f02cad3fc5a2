"""The longest cached prefix wins, as long as its endpoint is not overloaded; without any, the fewest requests.

Simpler than ``auto`` and easier to predict. It counts nothing but requests, and so keeps prompts of very different
length apart less well.
"""

from collections.abc import Sequence

from blade_router.endpoints import Endpoint
from blade_router.policies.base import Choice, Policy
from blade_router.policies.least_request import LeastRequest
from blade_router.policies.load import seats
from blade_router.policies.placed import PlacedChoice
from blade_router.policies.ring import LOAD_FACTOR
from blade_router.policies.source import PrefixSource
from blade_router.prompt_text import BLOCK, BYTES_PER_TOKEN
from blade_router.request import ClientRequest


class Prefix(Policy):
    name = "prefix"

    def __init__(self, source: PrefixSource) -> None:
        self._source = source
        self._otherwise = LeastRequest()

    def choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        chain = request.prompt.chain
        matched = self._source.match(chain, candidates)
        room = seats(candidates, LOAD_FACTOR)
        place = -1
        for at, endpoint in enumerate(candidates):
            held = matched[at]
            if held and endpoint.in_flight < room * endpoint.weight:
                ahead = held - matched[place] if place >= 0 else 1
                if ahead > 0 or (ahead == 0 and endpoint.in_flight < candidates[place].in_flight):
                    place = at
        if place < 0:
            place = candidates.index(self._otherwise.least(candidates))
        endpoint, held = candidates[place], matched[place]
        return PlacedChoice(
            endpoint,
            f"{self.name} prefix={held}/{len(chain)} in_flight={endpoint.in_flight}",
            self._source,
            chain,
            held,
            (len(request.prompt.text) - held * BLOCK) // BYTES_PER_TOKEN,
        )

    def scores(self, candidates: Sequence[Endpoint], request: ClientRequest) -> dict[str, dict[str, float]]:
        matched = self._source.match(request.prompt.chain, candidates)
        return {
            endpoint.name: {"cached_blocks": float(held), "in_flight": float(endpoint.in_flight)}
            for endpoint, held in zip(candidates, matched, strict=True)
        }
