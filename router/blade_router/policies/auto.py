"""The default policy: weighs what an engine would have to prefill against how busy it is.

``score = (1 + uncached + backlog / 20) * (1 + n / c) * g(kv) / weight``, and the lowest wins. ``uncached`` is the part
of this prompt that is not in its prefix cache and ``backlog`` what it still has to prefill for others, both in blocks.
``n`` are its requests, ``c`` its capacity relative to the others'; ``g`` rises when its KV cache is nearly full;
``weight`` is below 1 during slow start. The product needs no threshold: a warm engine wins until it is as many times
busier as the prompt is cheaper there. The backlog counts a twentieth because in full it drives prompts away from their
caches (simulated: 94 % hits instead of 97 %, a fifth less throughput).

Scores that are close count as equal, and recent requests decide (``request_history``). With several routers a prompt
that is cached nowhere goes by consistent hashing, so routers that share no state choose the same home for it.
"""

import time
from collections.abc import Sequence

from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies.base import Choice, Policy
from blade_router.policies.hashing.hash_ring import HashRing, hash_key
from blade_router.policies.load import MIN_WEIGHT, estimated_requests, reported_capacity, reported_kv_usage
from blade_router.policies.options import PolicyOptions
from blade_router.policies.prefix_cache.choice import TrackedChoice
from blade_router.policies.prefix_cache.interface import PrefixCacheIndex
from blade_router.policies.request_history import RequestHistory
from blade_router.request.prompt_text import BLOCK, BYTES_PER_TOKEN
from blade_router.request.request import ClientRequest

BLOCK_TOKENS = BLOCK // BYTES_PER_TOKEN
BACKLOG_WEIGHT = 0.05 / BLOCK_TOKENS
CLOSE = 1.6
"""Scores up to this many times the best count as equal to it."""
KV_FULL = 0.8
"""KV-cache usage above which an engine is avoided, the more the fuller it is."""
SHARED_BLOCKS = 2
"""Uncached blocks of a prompt that make its hash key when there are several routers."""
COLD_SHARE = 1.25
"""Load bound of homes: none gets more than this many times the mean of cold prompts."""
HOME, BALANCE = " home", " balance"
"""Suffixes of the reason when it was not the score alone."""


class Auto(Policy):
    """A policy that scores prefix-cache hits against load.

    Args:
        index: the prefix-cache index.
        options: of them ``replicas``, ``state_interval`` and ``rng``.
    """

    def __init__(self, index: PrefixCacheIndex, options: PolicyOptions, *, name: str = "auto") -> None:
        self.name = name
        self._index = index
        self._replicas = options.replicas
        self._interval = options.state_interval
        self._random = options.rng.random
        self._history = RequestHistory()
        self._ring = HashRing()

    def choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        prompt = request.prompt
        matched = self._index.match(prompt.chain, candidates)
        scores = self._score(candidates, matched, prompt.blocks)
        return self._select(candidates, matched, scores, request)

    def _score(self, candidates: Sequence[Endpoint], matched: Sequence[int], blocks: float) -> list[float]:
        scores: list[float] = []
        mean = 0.0
        now = time.monotonic()
        blocks += 1.0
        for endpoint, cached in zip(candidates, matched, strict=True):
            load: float = endpoint.in_flight
            report = endpoint.report
            if report.running or report.waiting:
                load = estimated_requests(endpoint, now, self._interval)
            if report.capacity and (capacity := reported_capacity(endpoint, now)):
                mean = mean or mean_capacity(candidates, now)
                load *= mean / capacity
            score = (blocks - cached + endpoint.backlog_tokens * BACKLOG_WEIGHT) * (1.0 + load)
            if report.kv_usage is not None and (usage := reported_kv_usage(endpoint, now)) > KV_FULL:
                score *= (1.0 - KV_FULL) / max(1.0 - usage, 0.01)
            weight = endpoint.health.weight
            if weight < 1.0:
                score /= max(weight, MIN_WEIGHT)
            scores.append(score)
        return scores

    def _select(
        self, candidates: Sequence[Endpoint], matched: Sequence[int], scores: Sequence[float], request: ClientRequest
    ) -> Choice:
        prompt = request.prompt
        chain, blocks = prompt.chain, prompt.blocks
        history = self._history
        history.add(candidates)
        best = min(scores)
        warm = 2 * matched[scores.index(best)] > len(chain)
        place = -1
        why = ""
        if not warm and chain and self._replicas() > 1:
            place = self._hash_ring_home(candidates, matched, scores, request)
            why = HOME if place >= 0 else ""
        if place < 0:
            place = self._pick_among_close(scores, best * CLOSE, candidates, history.requests if warm else history.cold)
        endpoint = candidates[place]
        if warm:
            colder = history.rebalance_target(candidates, endpoint, blocks)
            if colder >= 0 and 2 * matched[colder] <= len(chain):
                place, endpoint, why = colder, candidates[colder], BALANCE
        cached = matched[place]
        choice = TrackedChoice(
            endpoint,
            f"{self.name} prefix={cached}/{len(chain)} in_flight={endpoint.in_flight} score={int(scores[place])}{why}",
            self._index,
            chain,
            cached,
            int((blocks - cached) * BLOCK_TOKENS),
        )
        choice.history = history
        choice.blocks = blocks
        choice.size = max(endpoint.health.weight, MIN_WEIGHT)
        if endpoint.report.capacity and (capacity := reported_capacity(endpoint, now := time.monotonic())):
            choice.size *= capacity / mean_capacity(candidates, now)
        choice.moved = why is BALANCE
        return choice

    def _pick_among_close(
        self, scores: Sequence[float], limit: float, candidates: Sequence[Endpoint], history: dict[Endpoint, float]
    ) -> int:
        """The position of the candidate with the fewest recent requests among those with a score within the limit."""
        chosen = -1
        least = 0.0
        equal = 1
        for place, score in enumerate(scores):
            if score <= limit:
                recent = history[candidates[place]]
                if chosen < 0 or recent < least:
                    chosen, least, equal = place, recent, 1
                elif recent == least:
                    equal += 1
                    if self._random() * equal < 1.0:
                        chosen = place
        return chosen

    def _hash_ring_home(
        self, candidates: Sequence[Endpoint], matched: Sequence[int], scores: Sequence[float], request: ClientRequest
    ) -> int:
        """The position of the endpoint all routers choose for this prompt by hash; -1 when all are at the bound."""
        cold = self._history.cold
        mean = sum(cold[endpoint] for endpoint in candidates) / len(candidates)
        limit = min(scores) * 2 * CLOSE
        places = {endpoint: place for place, endpoint in enumerate(candidates)}
        key = request.prompt.key(max(matched) + SHARED_BLOCKS)
        for endpoint in self._ring.walk(hash_key(b"%d" % key), candidates):
            place = places[endpoint]
            if scores[place] <= limit and cold[endpoint] <= COLD_SHARE * mean + 4.0:
                return place
        return -1

    def scores(self, candidates: Sequence[Endpoint], request: ClientRequest) -> dict[str, dict[str, float]]:
        prompt = request.prompt
        matched = self._index.match(prompt.chain, candidates)
        scores = self._score(candidates, matched, prompt.blocks)
        return {
            endpoint.name: {
                "score": score,
                "blocks": prompt.blocks,
                "cached_blocks": float(cached),
                "backlog_blocks": endpoint.backlog_tokens / BLOCK_TOKENS,
                "in_flight": float(endpoint.in_flight),
                "recent_requests": self._history.requests.get(endpoint, 0.0),
            }
            for endpoint, cached, score in zip(candidates, matched, scores, strict=True)
        }

    def removed(self, endpoint: Endpoint) -> None:
        self._history.removed(endpoint)
        self._ring.remove(endpoint)


def mean_capacity(candidates: Sequence[Endpoint], now: float) -> float:
    """The mean of the known capacities; there must be one."""
    known = [capacity for endpoint in candidates if (capacity := reported_capacity(endpoint, now))]
    return sum(known) / len(known)
