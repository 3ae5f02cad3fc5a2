"""A fleet without a network: routers, engines with prefix caches and closed-loop clients in simulated time.

Policies are compared in it: the workload and the engines are those of the benchmark, but a run of thousands of
requests takes a fraction of a second and, with the same seed, always ends the same.
"""

import heapq
import itertools
import random
import statistics
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from blade_protocol.routing import EndpointConfig
from blade_router.endpoints.endpoint import Endpoint
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.policies import Choice, Policy
from blade_router.request.fields import parse_fields
from blade_router.request.request import ClientRequest
from blade_router.request.usage import Usage

BLOCK = 256
GROUPS = 64
GROUP_BLOCKS = 17
CACHE_BLOCKS = 400
BLOCK_TOKENS = 64


def chat_request(text: str, **fields: object) -> ClientRequest:
    """A parsed chat request with one message."""
    body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": text}], **fields})
    return ClientRequest("POST", "/v1/chat/completions", parse_fields(body), body, b"id")


def group_text(group: int, blocks: int = GROUP_BLOCKS) -> str:
    """A text of so many blocks that shares none with another group's."""
    word = f"group {group:06d} "
    return (word * (blocks * BLOCK // len(word) + 1))[: blocks * BLOCK]


@dataclass
class Engine:
    """One replica: a prefix cache with LRU eviction, and prompts computed one after another or side by side."""

    cache_blocks: int = CACHE_BLOCKS
    block_seconds: float = 0.001
    decode_seconds: float = 0.020
    serial: bool = False
    """Prompts wait for each other, as on a busy accelerator."""
    cache: OrderedDict[int, None] = field(default_factory=OrderedDict)
    requests: int = 0
    free_at: float = 0.0

    def serve(self, chain: Sequence[int], now: float) -> tuple[int, float, float]:
        """Cached blocks, and the times of the first byte and of the end."""
        self.requests += 1
        hit = next((depth for depth, block in enumerate(chain) if block not in self.cache), len(chain))
        for block in reversed(chain):
            self.cache[block] = None
            self.cache.move_to_end(block)
        while len(self.cache) > self.cache_blocks:
            self.cache.popitem(last=False)
        work = (len(chain) - hit) * self.block_seconds
        start = max(now, self.free_at) if self.serial else now
        if self.serial:
            self.free_at = start + work
        return hit, start + work, start + work + self.decode_seconds


@dataclass
class Result:
    hit_rate: float
    imbalance: float
    """Requests of the busiest engine, relative to the mean."""
    rate: float
    """Requests a second."""
    p99: float
    """Seconds."""
    homes: float
    """Engines that a group of prompts was sent to, on average."""


class Fleet:
    """Engines, and one or more routers in front that know nothing of each other."""

    def __init__(self, make: Callable[[], Policy], *, routers: int = 1, engines: int = 4, **engine: object) -> None:
        self.engines = [Engine(**engine) for _ in range(engines)]  # type: ignore[arg-type]
        self.policies = [make() for _ in range(routers)]
        self.views: list[list[Endpoint]] = []
        for _ in range(routers):
            endpoints = EndpointSet()
            endpoints.update(EndpointConfig(url=f"http://10.0.0.{at}:80", name=f"e{at}") for at in range(engines))
            self.views.append(endpoints.all)
        self.now = 0.0
        self._chains: dict[int, list[int]] = {}

    def run(
        self,
        groups: Iterator[int],
        *,
        count: int,
        clients: int,
        blocks: int = GROUP_BLOCKS,
        whole: bool = False,
        reports: bool = True,
    ) -> Result:
        """``clients`` at a time until ``count`` requests are done.

        Args:
            whole: responses come in one piece, so a router sees their first byte when they end.
            reports: responses have their cached tokens.
        """
        tie = itertools.count()
        events: list[tuple[float, int, Callable[[], None]]] = []
        served = [0] * len(self.engines)
        homes: dict[int, set[int]] = {}
        latencies: list[float] = []
        hits = queried = started = 0
        begin = self.now

        def start() -> None:
            nonlocal started, hits, queried
            if started == count:
                return
            started += 1
            group = next(groups)
            request = chat_request(group_text(group, blocks))
            at = started % len(self.policies)
            view = self.views[at]
            choice: Choice = self.policies[at].choose(view, request)
            choice.endpoint.in_flight += 1
            choice.sent()
            index = view.index(choice.endpoint)
            chain = self._chains.setdefault(group, [hash((group, block)) for block in range(blocks)])
            hit, first, end = self.engines[index].serve(chain, self.now)
            hits += hit
            queried += blocks
            served[index] += 1
            homes.setdefault(group, set()).add(index)
            latencies.append(end - self.now)
            usage = Usage(blocks * BLOCK_TOKENS, 16, hit * BLOCK_TOKENS if reports else None)
            heapq.heappush(events, (end if whole else first, next(tie), choice.first_byte))

            def ended() -> None:
                choice.endpoint.in_flight -= 1
                choice.ended(usage)
                start()

            heapq.heappush(events, (end, next(tie), ended))

        for _ in range(clients):
            start()
        while events:
            self.now, _, act = heapq.heappop(events)
            act()
        latencies.sort()
        return Result(
            hit_rate=hits / queried,
            imbalance=max(served) / statistics.mean(served),
            rate=count / (self.now - begin),
            p99=latencies[int(len(latencies) * 0.99)],
            homes=statistics.mean(len(each) for each in homes.values()),
        )


def uniform(seed: int, groups: int = GROUPS) -> Iterator[int]:
    rng = random.Random(seed)
    while True:
        yield rng.randrange(groups)


def zipf(seed: int, groups: int = GROUPS, exponent: float = 1.1) -> Iterator[int]:
    rng = random.Random(seed)
    weights = [1 / (rank + 1) ** exponent for rank in range(groups)]
    while True:
        yield from rng.choices(range(groups), weights, k=256)
