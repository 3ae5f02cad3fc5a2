"""LMETRIC: the least ``uncached * (requests in flight + 1)``, no thresholds.

Source: Blitz, and SGLang's ``lmetric`` policy. The record of prompts is an LRU of each engine that never hears back.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies import Choice, Policy
from blade_router.policies.prefix_cache.prefix_index import PrefixIndex
from blade_router.request.request import ClientRequest


class Lmetric(Policy):
    name = "lmetric"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._index = PrefixIndex()

    def choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        chain, blocks = request.prompt.chain, request.prompt.blocks + 1.0
        matched = self._index.match(chain, candidates)
        scores = [(blocks - cached) * (each.in_flight + 1) for each, cached in zip(candidates, matched, strict=True)]
        best = min(scores)
        place = self._rng.choice([at for at, score in enumerate(scores) if score == best])
        self._index.sent(chain, candidates[place], matched[place]).first_byte()
        return Choice(candidates[place], self.name)
