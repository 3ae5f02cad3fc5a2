"""llm-d's default scorers: ``3 * prefix + 2 * queue + 2 * kv``, the highest wins, of equal ones a random one.

``prefix`` is the matched share of the prompt, ``queue`` is ``(max - waiting) / (max - min)``, ``kv`` is ``1 - usage``.
Waiting requests and usage are the engines' metrics, read every 50 ms. The record of prompts is an LRU of each engine's
own capacity (auto-tuned).

Source: llm-d.ai, the architecture of the endpoint picker's request scheduler, and its default profile.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.routing.engine import BLOCK_TOKENS
from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies import Choice, Policy
from blade_router.policies.prefix_cache.prefix_index import PrefixIndex
from blade_router.request.request import ClientRequest

if TYPE_CHECKING:
    from benchmarks.routing.simulation import Fleet

SCRAPE_SECONDS = 0.05


class LlmD(Policy):
    name = "llm-d"

    def __init__(self, fleet: Fleet, rng: random.Random) -> None:
        self._fleet, self._rng = fleet, rng
        self._index = PrefixIndex()
        self._next = 0.0
        self._waiting: list[int] = []
        self._usage: list[float] = []

    def choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        fleet = self._fleet
        if fleet.now >= self._next:
            self._next = fleet.now + SCRAPE_SECONDS
            self._waiting = [max(0, engine.prefills - 1) for engine in fleet.engines]
            self._usage = [min(1.0, engine.held / engine.cache_blocks) for engine in fleet.engines]
        chain = request.prompt.chain
        matched = self._index.match(chain, candidates)
        most, least = max(self._waiting), min(self._waiting)
        spread = most - least
        scores = []
        for at, cached in enumerate(matched):
            queue = (most - self._waiting[at]) / spread if spread else 1.0
            scores.append(3.0 * cached / max(1, len(chain)) + 2.0 * queue + 2.0 * (1.0 - self._usage[at]))
        best = max(scores)
        place = self._rng.choice([at for at, score in enumerate(scores) if score == best])
        endpoint = candidates[place]
        endpoint.report.cache_tokens = fleet.engines[place].cache_blocks * BLOCK_TOKENS
        self._index.sent(chain, endpoint, matched[place]).first_byte()
        return Choice(endpoint, self.name)
