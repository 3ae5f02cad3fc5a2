"""Closed-loop clients, routers with the objects they really have, and simulated engines, in virtual time."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

from benchmarks.routing.engine import BLOCK_TOKENS, Engine
from benchmarks.routing.replica_sync import Exchange
from benchmarks.routing.workload import Job, Trace
from blade_protocol.routing import EndpointConfig
from blade_router.endpoints.attempt import Attempt
from blade_router.endpoints.endpoint import Endpoint
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.http.client import Client, FlowControl
from blade_router.policies import Policy
from blade_router.policies.replica_sync.siblings import Siblings
from blade_router.request.usage import Usage

Reported = Literal["exact", "absent", "zero", "cumulative", "foreign"]
"""``cached_tokens``: right, left out, always 0, summed up over all requests, or with another tokenizer's
``prompt_tokens``."""
FOREIGN_TOKENS = 2.5
REPORT_SECONDS = 0.1
"""Interval of engines' load reports, where they push them."""
_FIRST_BYTE, _END = 0, 1


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """How engines behave and what they report."""

    cache_blocks: int
    block_seconds: float
    decode_seconds: float
    decode_share: float = 0.0
    slots: int = 256
    slowness: tuple[float, ...] = (1.0,)
    """Of each engine; the last one counts for all that follow."""
    reported: Reported = "exact"
    reports: bool = False
    """Engines push their load and capacity."""
    whole: bool = False
    """Responses come in one piece."""
    restart_every: float = 0.0
    """Seconds after which one engine loses its cache, in turn; 0: never."""


@dataclass
class Result:
    goodput: float
    """Requests a second."""
    p50: float
    p99: float
    """Seconds to the first token, or to the response where it comes in one piece."""
    hit_rate: float
    imbalance: float
    copies: float = 0.0
    """Share of all cached blocks that are copies."""


@dataclass(slots=True)
class _Sent:
    """One request on its way."""

    attempt: Attempt
    engine: Engine
    blocks: float
    sent_at: float
    usage: Usage | None = None
    """What the attempt reads."""


class Fleet:
    """Engines, and routers in front that know nothing of each other, unless their policy has them ``sync``.

    Args:
        make: makes the policy of one router of this fleet.
    """

    def __init__(
        self,
        make: Callable[[Fleet, random.Random], Policy],
        conditions: Conditions,
        engines: int,
        routers: int,
        seed: int,
    ) -> None:
        self.conditions = conditions
        self.now = 1000.0
        self.routers = routers
        self.engines = [
            Engine(
                conditions.cache_blocks,
                conditions.block_seconds,
                decode_share=conditions.decode_share,
                slots=conditions.slots,
                slowness=conditions.slowness[min(at, len(conditions.slowness) - 1)],
            )
            for at in range(engines)
        ]
        self.views: list[list[Endpoint]] = []
        self.place: dict[Endpoint, int] = {}
        for _ in range(routers):
            endpoints = EndpointSet()
            endpoints.update(EndpointConfig(url=f"http://10.0.0.{at}:80", name=f"e{at}") for at in range(engines))
            self.views.append(endpoints.all)
            self.place |= {endpoint: at for at, endpoint in enumerate(endpoints.all)}
        rng = random.Random(seed)
        self._exchange: Exchange | None = None
        self.policies: list[Policy] = []
        for _ in range(routers):
            self.policies.append(make(self, random.Random(rng.random())))
        self._client = Client(FlowControl(cast(Any, None)))
        """Nothing is written to it."""
        self._next_report = 0.0
        self._next_restart = self.now + conditions.restart_every if conditions.restart_every else math.inf
        self._restarted = 0

    def sync(self) -> Siblings | None:
        """What the router whose policy is made now learns from the others; None: there are none."""
        if self.routers == 1:
            return None
        if self._exchange is None:
            self._exchange = Exchange(self.clock, self.now, self.routers)
        return self._exchange.join(self.views[len(self.policies)])

    def clock(self) -> float:
        return self.now

    def run(self, trace: Trace, clients: int, count: int) -> Result:
        """``clients`` at a time, until ``count`` requests are done."""
        jobs = iter(trace.jobs)
        events: list[tuple[float, int, int, _Sent]] = []
        order = 0
        begin = self.now
        waits: list[float] = []
        whole = self.conditions.whole
        for at in range(clients):
            sent, first, end = self._send(next(jobs), at % self.routers)
            order += 2
            heapq.heappush(events, (end if whole else first, order, _FIRST_BYTE, sent))
            heapq.heappush(events, (end, order + 1, _END, sent))
        done = 0
        while done < count:
            if (exchange := self._exchange) is not None and exchange.next_at <= events[0][0]:
                self.now = exchange.next_at
                exchange.step()
                continue
            self.now, _, kind, sent = heapq.heappop(events)
            if kind == _FIRST_BYTE:
                waits.append(self.now - sent.sent_at)
                sent.engine.prefills -= 1
                sent.attempt.first_byte()
                continue
            done += 1
            engine = sent.engine
            engine.open -= 1
            engine.held -= sent.blocks
            sent.attempt.__exit__()
            sent, first, end = self._send(next(jobs), done % self.routers)
            order += 2
            heapq.heappush(events, (end if whole else first, order, _FIRST_BYTE, sent))
            heapq.heappush(events, (end, order + 1, _END, sent))
        waits.sort()
        requests = [engine.requests for engine in self.engines]
        distinct = set().union(*(engine.cache for engine in self.engines))
        stored = sum(len(engine.cache) for engine in self.engines)
        return Result(
            goodput=done / (self.now - begin),
            p50=waits[len(waits) // 2],
            p99=waits[int(len(waits) * 0.99)],
            hit_rate=sum(engine.hits for engine in self.engines) / sum(engine.blocks for engine in self.engines),
            imbalance=max(requests) * len(requests) / sum(requests),
            copies=1.0 - len(distinct) / stored if stored else 0.0,
        )

    def _send(self, job: Job, router: int) -> tuple[_Sent, float, float]:
        now, conditions = self.now, self.conditions
        if conditions.reports and now >= self._next_report:
            self.report()
            self._next_report = now + REPORT_SECONDS
        if now >= self._next_restart:
            self.engines[self._restarted % len(self.engines)].restart()
            self._restarted += 1
            self._next_restart = now + conditions.restart_every
        choice = self.policies[router].choose(self.views[router], job.request)
        engine = self.engines[self.place[choice.endpoint]]
        prompt = job.request.prompt
        hit, first, end = engine.serve(prompt.chain, prompt.blocks, job.decode * conditions.decode_seconds, now)
        sent = _Sent(None, engine, prompt.blocks, now, self._usage(engine, prompt.blocks, hit))  # type: ignore[arg-type]
        sent.attempt = Attempt(choice, sent, self._client)
        sent.attempt.__enter__()
        engine.open += 1
        engine.prefills += 1
        return sent, first, end

    def _usage(self, engine: Engine, blocks: float, hit: int) -> Usage:
        tokens, kind = int(blocks * BLOCK_TOKENS), self.conditions.reported
        cached: int | None = hit * BLOCK_TOKENS
        if kind == "absent":
            cached = None
        elif kind == "zero":
            cached = 0
        elif kind == "cumulative":
            cached = engine.cached_total = engine.cached_total + hit * BLOCK_TOKENS
        elif kind == "foreign":
            tokens = int(tokens * FOREIGN_TOKENS)
        return Usage(tokens, 16, cached)

    def report(self) -> None:
        """Each engine reports its load to all routers."""
        for endpoint, at in self.place.items():
            engine, report = self.engines[at], endpoint.report
            report.waiting = max(0, engine.prefills - 1)
            report.running = engine.open - report.waiting
            report.capacity = engine.slots
            report.cache_tokens = engine.cache_blocks * BLOCK_TOKENS
            report.kv_usage = min(1.0, engine.held / engine.cache_blocks)
            report.reported_at = self.now
