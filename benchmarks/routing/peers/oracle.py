"""An oracle: it sees every engine's cache and queue as they are, and how fast each engine is.

The least ``queue + own prefill + cost of the copy``, in seconds. The copy costs what it pushes out of a full cache
times the chance that it is needed again, for which the fleet's share of first-hand misses stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies import Choice, Policy
from blade_router.request.request import ClientRequest

if TYPE_CHECKING:
    from benchmarks.routing.simulation import Fleet


class Oracle(Policy):
    name = "oracle"

    def __init__(self, fleet: Fleet, eviction: float = 1.0) -> None:
        self._fleet = fleet
        self._eviction = eviction

    def choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        chain, blocks, now = request.prompt.chain, request.prompt.blocks, self._fleet.now
        best, chosen = float("inf"), candidates[0]
        for endpoint, engine in zip(candidates, self._fleet.engines, strict=True):
            own = (blocks - engine.hit(chain)) * engine.block_seconds
            if engine.decode_share:
                own *= 1.0 + engine.decode_share * engine.open
            full = len(engine.cache) + blocks > engine.cache_blocks
            cost = max(0.0, engine.free_at - now) + own * (1.0 + self._eviction * full)
            cost += 1e-6 * len(engine.cache)
            if cost < best:
                best, chosen = cost, endpoint
        return Choice(chosen, self.name)
