"""SGLang's and SMG's ``cache_aware``.

Imbalanced when ``max - min > balance_abs_threshold`` and ``max > balance_rel_threshold * min`` requests: the shortest
queue. Else the engine with the longest matching prefix, when it matches more than ``cache_threshold`` of the prompt;
else the least loaded one, of equal ones the one that has got least. SGLang's command line: 64, 1.5, 0.3. SMG's
defaults: 32, 1.1, 0.5.

Sources: sgl-project/sglang docs/router/router.md; lightseekorg/smg docs/concepts/routing/cache-aware.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.routing.peers.history import History
from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies import Choice, Policy
from blade_router.request.request import ClientRequest


class CacheAware(Policy):
    def __init__(self, absolute: int, relative: float, threshold: float) -> None:
        self.name = "cache-aware"
        self._absolute, self._relative, self._threshold = absolute, relative, threshold
        self._history = History()
        self._processed: dict[Endpoint, int] = {}

    def choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        loads = [endpoint.in_flight for endpoint in candidates]
        most, least = max(loads), min(loads)
        chain = request.prompt.chain
        chosen: Endpoint | None = None
        if not (most - least > self._absolute and most > self._relative * least):
            depth, bits = self._history.deepest(chain)
            if depth > self._threshold * request.prompt.blocks:
                chosen = next(endpoint for endpoint in candidates if self._history.bit(endpoint) & bits)
        if chosen is None:
            count = self._processed
            chosen = min(candidates, key=lambda endpoint: (endpoint.in_flight, count.get(endpoint, 0)))
        self._processed[chosen] = self._processed.get(chosen, 0) + 1
        self._history.add(chain, chosen)
        return Choice(chosen, self.name)
