"""The default policy: a request goes where its prompt is expected to be computed first, in seconds.

``wait + fixed + own * (1 + pressure) + copy * (aversion + crowd)``, and the lowest wins. ``wait`` is what the engine
still has to compute for others, ``own`` what of this prompt is not in its cache, at the engine's own rate, learned from
its responses (``endpoints.prefill_clock``). ``fixed`` is what any request takes, and where the weights of its adapter
are on disk alone, what reading them does. ``pressure`` is higher where much was put of late: new blocks evict others.
``copy`` is what it computes although another engine has it. That costs others as well: the blocks it evicts, and the
``crowd`` that waits there and is served later. So a prompt leaves its engine when waiting there costs more than
computing it again costs everybody, and not before; a popular one gets a second home when one engine cannot serve it.

At about equal expectation a warm engine wins, then the one that got the least new blocks. Requests of other routers
count like own ones where they report them (``replica_sync``). With routers that do not, or whose block hashes mean
nothing here, a prompt that this one has not sent before is expected at its home, found by rendezvous hashing: others
may have sent it there.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies.base import Choice, Policy
from blade_router.policies.fleet_times import LEAST_PLACED, FleetTimes
from blade_router.policies.load import MIN_WEIGHT, STALE, reported_capacity, reported_kv_usage
from blade_router.policies.options import PolicyOptions
from blade_router.policies.prefix_cache.choice import TimedChoice
from blade_router.policies.prefix_cache.interface import PrefixCacheIndex
from blade_router.request.prompt_text import BLOCK, BYTES_PER_TOKEN
from blade_router.request.request import ClientRequest

BLOCK_TOKENS: Final = BLOCK // BYTES_PER_TOKEN
CLOSE: Final = 0.25
"""Costs up to this share above the least ..."""
CLOSE_SECONDS: Final = 0.001
"""... and this much count as equal to it: estimates are no better."""
PRESSURE: Final = 0.5
"""What new blocks evict, relative to their own prefill, on an engine that got an average share of them."""
AVERSION: Final = 1.0
"""What a copy costs beside its own prefill where nobody waits."""
AVERSION_OF_SEVERAL: Final = 4.0
"""The same where other routers may have put the prompt at its home."""
CROWD: Final = 1.0
"""Share of those who wait on an engine that a copy delays."""
HOME_SHARE: Final = 0.9
"""Share of an unknown prompt that counts as cached at its home, where there are several routers."""
SLOW_DECODE: Final = 1.1
"""How many times the usual an engine's output tokens take, from which on it counts as slow in decoding, ..."""
DECODE_SHARE: Final = 0.5
"""... and the share of what that costs a usual stream: its client waits for the first token most."""
KV_FULL: Final = 0.8
"""KV-cache usage above which a request may have to wait for room: at most until another one of its engine ends."""
UNKNOWN_SERVICE: Final = 1.0
"""Seconds of a request of an engine that has not ended any."""
SHARED_BLOCKS: Final = 2
"""Uncached blocks of a prompt that make its hash key when there are several routers."""
_MASK: Final = (1 << 64) - 1


class Auto(Policy):
    """A policy that chooses by expected time.

    Args:
        index: the prefix-cache index.
        options: of them ``replicas``, ``siblings``, ``state_interval``, ``clock`` and ``rng``.
    """

    def __init__(self, index: PrefixCacheIndex, options: PolicyOptions, *, name: str = "auto") -> None:
        self.name = name
        self._index = index
        self._replicas = options.replicas
        self._stale = STALE * options.state_interval
        self._clock = options.clock
        self._rng = options.rng
        self._times = FleetTimes()
        self._siblings = options.siblings
        if self._siblings is not None:
            self._siblings.attach(index, self._times)
        self._seeds: dict[Endpoint, int] = {}
        self._now = 0.0
        self._strangers = 1
        """``_unknown`` at the last ``_costs``, which comes before each ``_select``."""

    def choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        matched = self._index.match(request.prompt.chain, candidates)
        costs = self._costs(candidates, matched, request)
        return self._select(candidates, matched, costs, request)

    def _costs(self, candidates: Sequence[Endpoint], matched: Sequence[int], request: ClientRequest) -> list[float]:
        """The expected cost of each candidate in seconds."""
        self._now = now = self._clock()
        prompt = request.prompt
        blocks = prompt.blocks
        stream = bool(request.fields.stream)
        model = request.fields.model or ""
        routers = self._unsynced()
        self._strangers = strangers = self._unknown()
        warmest = float(max(matched))
        aversion = AVERSION
        home: Endpoint | None = None
        if strangers > 1:
            aversion = AVERSION_OF_SEVERAL
            if 2 * warmest <= len(prompt.chain):
                home = self._home(candidates, prompt.key(int(warmest) + SHARED_BLOCKS))
                warmest += (blocks - warmest) * HOME_SHARE
        times = self._times
        usual, work = times.block, times.work
        steady, streamed = times.token * SLOW_DECODE, times.output * DECODE_SHARE
        mean_placed = times.placed / len(candidates) + 1.0
        costs: list[float] = []
        for place, endpoint in enumerate(candidates):
            prefill = endpoint.prefill
            if not prefill.samples:
                if usual:
                    prefill.block = usual
                if not prefill.placed:  # in the order of the list all routers would begin with the same engine
                    prefill.placed = self._rng.random() * LEAST_PLACED
            rate = prefill.block
            wait = prefill.wait(now, routers) if prefill.open else 0.0
            report = endpoint.report
            if report.reported_at:
                if report.waiting and now - report.reported_at < self._stale:
                    wait = max(wait, report.waiting * work)
                if (
                    report.capacity
                    and endpoint.in_flight >= report.capacity
                    and (capacity := reported_capacity(endpoint, now))
                ):
                    wait += prefill.service * (endpoint.in_flight + 1 - capacity) / capacity
            cached = float(matched[place])
            if endpoint is home:
                cached += (blocks - cached) * HOME_SHARE
            cost = wait + (prefill.fixed if stream else prefill.delay)
            if report.adapter_seconds:
                cost += report.adapter_seconds.get(model, 0.0)
            if stream and prefill.token > steady:
                cost += (prefill.token - steady) * streamed
            cost += (blocks - cached) * rate * (1.0 + PRESSURE * prefill.placed / mean_placed)
            if cached < warmest:
                cost += (warmest - cached) * rate * (aversion + CROWD * wait / work)
            if (
                report.reported_at
                and report.kv_usage is not None
                and (usage := reported_kv_usage(endpoint, now)) > KV_FULL
            ):
                until_room = (prefill.service or UNKNOWN_SERVICE) / max(1, endpoint.in_flight)
                cost += until_room * (usage - KV_FULL) / (1.0 - KV_FULL)
            weight = endpoint.health.weight
            if weight < 1.0:
                cost = (cost + CLOSE_SECONDS) / max(weight, MIN_WEIGHT)
            costs.append(cost)
        return costs

    def _select(
        self, candidates: Sequence[Endpoint], matched: Sequence[int], costs: Sequence[float], request: ClientRequest
    ) -> Choice:
        prompt = request.prompt
        chain, blocks = prompt.chain, prompt.blocks
        best = min(costs)
        limit = best * (1.0 + CLOSE) + CLOSE_SECONDS
        place = deepest = -1
        least = 0.0
        for at, cost in enumerate(costs):
            if cost <= limit:
                cached = matched[at]
                if cached >= deepest:
                    endpoint = candidates[at]
                    placed = _placed(endpoint)
                    if cached > deepest or placed < least:
                        deepest, place, least = cached, at, placed
        home = False
        if self._strangers > 1 and 2 * deepest <= len(chain) and chain:
            place = costs.index(best)
            home = True
        elif 2 * deepest <= len(chain) and self._siblings is not None and self._siblings.log.alike:
            place = self._less_placed_of_two(
                [at for at, cost in enumerate(costs) if cost <= limit and matched[at] >= deepest], candidates
            )
        cached = matched[place]
        uncached = blocks - cached
        return TimedChoice(
            candidates[place],
            self.name,
            self._index,
            chain,
            cached,
            int(uncached * BLOCK_TOKENS),
            uncached,
            costs[place],
            home,
            not request.fields.stream,
            self._now,
            self._clock,
            self._times,
            candidates,
        )

    def _less_placed_of_two(self, close: Sequence[int], candidates: Sequence[Endpoint]) -> int:
        """Of two random places the one that got less: siblings that know the same must not all take the same one."""
        one = close[int(self._rng.random() * len(close))]
        other = close[int(self._rng.random() * len(close))]
        return one if _placed(candidates[one]) <= _placed(candidates[other]) else other

    def _home(self, candidates: Sequence[Endpoint], key: int) -> Endpoint:
        """The endpoint all routers find for a key by rendezvous hashing."""
        best = -1
        home = candidates[0]
        for endpoint in candidates:
            seed = self._seeds.get(endpoint)
            if seed is None:
                digest = blake2b(endpoint.name.encode(), digest_size=8).digest()
                seed = self._seeds[endpoint] = int.from_bytes(digest, "big")
            mixed = ((key * 0x9E3779B97F4A7C15) ^ seed) & _MASK
            mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
            mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
            if mixed > best:
                best, home = mixed, endpoint
        return home

    def scores(self, candidates: Sequence[Endpoint], request: ClientRequest) -> dict[str, dict[str, float]]:
        prompt = request.prompt
        matched = self._index.match(prompt.chain, candidates)
        costs = self._costs(candidates, matched, request)
        now, routers = self._clock(), self._unsynced()
        return {
            endpoint.name: {
                "score": cost * 1e3,
                "wait_ms": endpoint.prefill.wait(now, routers) * 1e3,
                "block_ms": endpoint.prefill.block * 1e3,
                "blocks": prompt.blocks,
                "cached_blocks": float(cached),
                "in_flight": float(endpoint.in_flight),
            }
            for endpoint, cached, cost in zip(candidates, matched, costs, strict=True)
        }

    def _unsynced(self) -> int:
        """The routers, this one included, of which nothing is known: how much they send is guessed."""
        siblings = self._siblings
        return self._replicas() if siblings is None else max(1, self._replicas() - siblings.log.synced)

    def _unknown(self) -> int:
        """The routers, this one included, whose prompts are not known: where they send them is guessed."""
        siblings = self._siblings
        return self._replicas() if siblings is None else max(1, self._replicas() - siblings.log.alike)

    def removed(self, endpoint: Endpoint) -> None:
        self._seeds.pop(endpoint, None)


def _placed(endpoint: Endpoint) -> float:
    """Its new blocks; one that may take only a part counts as if it had got its share of them already."""
    return endpoint.prefill.placed / max(endpoint.health.weight, MIN_WEIGHT)
