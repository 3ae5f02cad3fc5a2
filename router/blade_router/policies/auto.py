"""The default: weighs what an engine would have to compute against how busy it is.

``score = (1 + uncached + backlog / 20) * (1 + n / c) * g(kv) / weight``, and the lowest wins. ``uncached`` is what of
this prompt its cache lacks and ``backlog`` what it still has to compute for others, both in blocks. ``n`` are its
requests, ``c`` its capacity relative to the others'; ``g`` rises when its KV cache is nearly full; ``weight`` is below
1 while it is new. The product needs no threshold: a warm engine wins until it is as many times busier as the prompt is
cheaper there. The backlog counts a twentieth because in full it drives prompts away from their caches (simulated: 94 %
hits instead of 97 %, a fifth less throughput).

Scores that are close count as equal, and recent history decides (``balance``). With several routers a prompt nobody
holds goes by consistent hashing, so that routers that know nothing of each other find the same home for it.
"""

import time
from collections.abc import Sequence

from blade_router.endpoints import Endpoint
from blade_router.policies.balance import Balance
from blade_router.policies.base import Choice, Policy
from blade_router.policies.load import MIN_WEIGHT, requests_on, told_capacity, told_kv_usage
from blade_router.policies.options import PolicyOptions
from blade_router.policies.placed import CountedChoice
from blade_router.policies.ring import Ring, hashed
from blade_router.policies.source import PrefixSource
from blade_router.prompt_text import BLOCK, BYTES_PER_TOKEN
from blade_router.request import ClientRequest

BLOCK_TOKENS = BLOCK // BYTES_PER_TOKEN
BACKLOG_WEIGHT = 0.05 / BLOCK_TOKENS
CLOSE = 1.6
"""Scores up to this many times the best count as equal to it."""
KV_FULL = 0.8
"""KV usage from which on an engine is avoided, the more the fuller it is."""
SHARED_BLOCKS = 2
"""How much of what nobody holds of a prompt decides its home when there are several routers."""
COLD_SHARE = 1.25
"""No home gets more than this many times the mean of cold prompts."""
HOME, BALANCE = " home", " balance"
"""What the reason says when it was not the score alone."""


class Auto(Policy):
    """Args:

    source: who knows what engines have cached.
    options: of them ``replicas``, ``state_interval`` and ``rng``.
    """

    def __init__(self, source: PrefixSource, options: PolicyOptions, *, name: str = "auto") -> None:
        self.name = name
        self._source = source
        self._replicas = options.replicas
        self._interval = options.state_interval
        self._random = options.rng.random
        self._balance = Balance()
        self._ring = Ring()

    def choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        prompt = request.prompt
        matched = self._source.match(prompt.chain, candidates)
        scores = self._score(candidates, matched, prompt.blocks)
        return self._place(candidates, matched, scores, request)

    def _score(self, candidates: Sequence[Endpoint], matched: Sequence[int], blocks: float) -> list[float]:
        scores: list[float] = []
        mean = 0.0
        now = time.monotonic()
        blocks += 1.0
        for endpoint, held in zip(candidates, matched, strict=True):
            load: float = endpoint.in_flight
            if endpoint.running or endpoint.waiting:
                load = requests_on(endpoint, now, self._interval)
            if endpoint.capacity and (capacity := told_capacity(endpoint, now)):
                mean = mean or mean_capacity(candidates, now)
                load *= mean / capacity
            score = (blocks - held + endpoint.backlog_tokens * BACKLOG_WEIGHT) * (1.0 + load)
            if endpoint.kv_usage is not None and (usage := told_kv_usage(endpoint, now)) > KV_FULL:
                score *= (1.0 - KV_FULL) / max(1.0 - usage, 0.01)
            if endpoint.weight < 1.0:
                score /= max(endpoint.weight, MIN_WEIGHT)
            scores.append(score)
        return scores

    def _place(
        self, candidates: Sequence[Endpoint], matched: Sequence[int], scores: Sequence[float], request: ClientRequest
    ) -> Choice:
        prompt = request.prompt
        chain, blocks = prompt.chain, prompt.blocks
        balance = self._balance
        balance.join(candidates)
        best = min(scores)
        warm = 2 * matched[scores.index(best)] > len(chain)
        place = -1
        why = ""
        if not warm and chain and self._replicas() > 1:
            place = self._home(candidates, matched, scores, request)
            why = HOME if place >= 0 else ""
        if place < 0:
            place = self._among_close(scores, best * CLOSE, candidates, balance.requests if warm else balance.cold)
        endpoint = candidates[place]
        if warm:
            colder = balance.behind(candidates, endpoint, blocks)
            if colder >= 0 and 2 * matched[colder] <= len(chain):
                place, endpoint, why = colder, candidates[colder], BALANCE
        held = matched[place]
        choice = CountedChoice(
            endpoint,
            f"{self.name} prefix={held}/{len(chain)} in_flight={endpoint.in_flight} score={int(scores[place])}{why}",
            self._source,
            chain,
            held,
            int((blocks - held) * BLOCK_TOKENS),
        )
        choice.balance = balance
        choice.blocks = blocks
        choice.size = max(endpoint.weight, MIN_WEIGHT)
        if endpoint.capacity and (capacity := told_capacity(endpoint, now := time.monotonic())):
            choice.size *= capacity / mean_capacity(candidates, now)
        choice.moved = why is BALANCE
        return choice

    def _among_close(
        self, scores: Sequence[float], limit: float, candidates: Sequence[Endpoint], history: dict[Endpoint, float]
    ) -> int:
        """The place of the one with the least recent history among those whose score is within the limit."""
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

    def _home(
        self, candidates: Sequence[Endpoint], matched: Sequence[int], scores: Sequence[float], request: ClientRequest
    ) -> int:
        """The place of the endpoint on which all routers would put this prompt; -1 when none of them has room."""
        cold = self._balance.cold
        mean = sum(cold[endpoint] for endpoint in candidates) / len(candidates)
        limit = min(scores) * 2 * CLOSE
        places = {endpoint: place for place, endpoint in enumerate(candidates)}
        key = request.prompt.key(max(matched) + SHARED_BLOCKS)
        for endpoint in self._ring.order(hashed(b"%d" % key), candidates):
            place = places[endpoint]
            if scores[place] <= limit and cold[endpoint] <= COLD_SHARE * mean + 4.0:
                return place
        return -1

    def scores(self, candidates: Sequence[Endpoint], request: ClientRequest) -> dict[str, dict[str, float]]:
        prompt = request.prompt
        matched = self._source.match(prompt.chain, candidates)
        scores = self._score(candidates, matched, prompt.blocks)
        return {
            endpoint.name: {
                "score": score,
                "blocks": prompt.blocks,
                "cached_blocks": float(held),
                "backlog_blocks": endpoint.backlog_tokens / BLOCK_TOKENS,
                "in_flight": float(endpoint.in_flight),
                "recent_requests": self._balance.requests.get(endpoint, 0.0),
            }
            for endpoint, held, score in zip(candidates, matched, scores, strict=True)
        }

    def removed(self, endpoint: Endpoint) -> None:
        self._balance.removed(endpoint)
        self._ring.remove(endpoint)


def mean_capacity(candidates: Sequence[Endpoint], now: float) -> float:
    """The mean of those capacities that are known; there must be one."""
    known = [capacity for endpoint in candidates if (capacity := told_capacity(endpoint, now))]
    return sum(known) / len(known)
