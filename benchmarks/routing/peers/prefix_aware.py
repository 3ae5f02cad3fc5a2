"""vLLM production-stack's ``prefixaware``: a random one of the engines that got the longest prefix; no load, no end.

Source: vllm-project/production-stack, the documentation of prefix-aware routing (a hash trie of chunks of 128
characters; here blocks of 256).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks.routing.peers.history import History
from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies import Choice, Policy
from blade_router.request.request import ClientRequest


class PrefixAware(Policy):
    name = "prefix-aware"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._history = History()

    def choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        chain = request.prompt.chain
        depth, bits = self._history.deepest(chain)
        holders = [each for each in candidates if self._history.bit(each) & bits] if depth else candidates
        chosen = self._rng.choice(holders)
        self._history.add(chain, chosen)
        return Choice(chosen, self.name)
