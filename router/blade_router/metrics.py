"""What the router counts. The hot path adds plain numbers; Prometheus' shape is made when someone asks.

A labelled prometheus-client counter costs more per request than choosing an endpoint does.
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from blade_protocol import metrics as names
from blade_router.admission.waiting import WaitingRooms
from blade_router.distribution import BUCKETS, SLOT_SECONDS, SLOTS, TOKEN_BUCKETS, Distribution, family
from blade_router.endpoints import EndpointSet
from blade_router.usage import Usage

MOST_LABELS = 100
"""Names of keys, and of models, that are told apart; further ones are counted as ``OTHER``."""
LABEL_LENGTH = 256
"""Characters of a model's name that are told."""
MOST_ACCOUNTS = 1000
"""Pairs of the two."""
OTHER = "other"
FULL_WAITING = 5
FULL_KV = 0.8
"""Requests that wait inside an engine, and the share of its KV cache in use, at which it counts as full."""
STALE_SECONDS = 10.0
"""What an engine told longer ago does not count."""

_BREAKER_STATES = {"closed": 0, "half-open": 1, "open": 2}


class Account:
    """What was asked for under one key, of one model."""

    __slots__ = ("cached_tokens", "completion_tokens", "prompt_tokens", "requests")

    def __init__(self) -> None:
        self.requests: defaultdict[int, int] = defaultdict(int)
        """By status."""
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0


class Mark(NamedTuple):
    """Counters at one moment: what has passed since then is a rate."""

    time: float
    arrivals: int
    ended: int
    prompt_tokens: int
    cached_tokens: int


class Metrics:
    """The router's counters, and a Prometheus collector over them. Times are ``time.perf_counter``'s."""

    def __init__(self, endpoints: EndpointSet, rooms: WaitingRooms | None = None) -> None:
        self.endpoints = endpoints
        self.rooms = rooms or WaitingRooms(endpoints)
        self.in_flight = 0
        self.arrivals = 0
        self.retries: defaultdict[str, int] = defaultdict(int)
        """Requests sent to another endpoint, by what was wrong with the one before."""
        self.refused: defaultdict[str, int] = defaultdict(int)
        """Requests the router answered with an error of its own, by the error's code."""
        self.resumes: defaultdict[str, int] = defaultdict(int)
        """Streams whose engine was lost after their first byte, by what became of them: ``resumed``; ``refused`` by the
        replica that was asked; ``failed`` on all that were; ``nobody`` was there to ask; ``unknown`` what was sent."""
        self.retries_exhausted: Callable[[], int] = lambda: 0
        """How many retries there was no budget for; set by who keeps the budget."""
        self.ttft = Distribution()
        """Until the first byte of streams."""
        self.unary = Distribution()
        """The same of other answers."""
        self.tpot = Distribution()
        self.e2e = Distribution()
        """Until the end of successful requests."""
        self.failed = Distribution()
        """The same of all others."""
        self._distributions = (self.ttft, self.unary, self.tpot, self.e2e, self.failed, self.rooms.waited)
        self.accounts: dict[tuple[str, str], Account] = {}
        """By key and model."""
        self._prompt_tokens = 0
        """Of requests whose engine tells how many of them were cached."""
        self._cached_tokens = 0
        self._keys: set[str] = set()
        self._models: set[str] = set()
        self.configured_models: frozenset[str] = frozenset()
        """Names the configuration lists; set by who has it."""
        now = time.perf_counter()
        self._turn_at = now + SLOT_SECONDS
        self._marks = deque([Mark(now, 0, 0, 0, 0)], maxlen=SLOTS)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    # what the data path calls

    def begin(self, now: float) -> None:
        """A request has come."""
        if now >= self._turn_at:
            self._turn(now)
        self.in_flight += 1
        self.arrivals += 1

    def end(
        self,
        status: int,
        started: float,
        answered: float,
        streamed: bool,
        key: str,
        model: str | None,
        usage: Usage | None,
    ) -> None:
        """It has ended.

        Args:
            answered: when the first byte of its answer went out; 0 when none of an engine's did.
            key, model: names; those that are many, or come from failed requests only, are counted together.
        """
        now = time.perf_counter()
        if now >= self._turn_at:
            self._turn(now)
        self.in_flight -= 1
        account = self.accounts.get((key, model or ""))
        if account is None:
            account = self._account(key, model or "", status)
        account.requests[status] += 1
        if answered:
            (self.ttft if streamed else self.unary).observe(answered - started)
        if status >= 400:
            self.failed.observe(now - started)
            return
        self.e2e.observe(now - started)
        if usage is None:
            return
        tokens = usage.completion_tokens
        if streamed and tokens > 1:
            self.tpot.observe((now - answered) / (tokens - 1))
        account.completion_tokens += tokens
        account.prompt_tokens += usage.prompt_tokens
        if usage.cached_tokens is not None:
            account.cached_tokens += usage.cached_tokens
            self._prompt_tokens += usage.prompt_tokens
            self._cached_tokens += usage.cached_tokens

    def spoiled(self, status: int, code: str) -> None:
        """What came was no request, and was answered with an error."""
        self.arrivals += 1
        account = self.accounts.get(("", OTHER)) or self._account("", OTHER, status)
        account.requests[status] += 1
        self.refused[code] += 1

    def _turn(self, now: float) -> None:
        """Another slot of the last minute has begun. Nothing was counted since the end of the one before."""
        self._marks.append(self._mark(self._turn_at))
        slots = int((now - self._turn_at) / SLOT_SECONDS) + 1
        self._turn_at += slots * SLOT_SECONDS
        for distribution in self._distributions:
            distribution.turn(slots)
        if slots > 1:
            self._marks.append(self._mark(self._turn_at - SLOT_SECONDS))

    def _mark(self, now: float) -> Mark:
        return Mark(now, self.arrivals, self.ended, self._prompt_tokens, self._cached_tokens)

    def _account(self, key: str, model: str, status: int) -> Account:
        """A new one, or the one for what is not told apart: clients choose names, and must not choose how many."""
        if key not in self._keys and len(self._keys) >= MOST_LABELS:
            key = OTHER
        if model and model not in self._models:
            known = len(self._models) < MOST_LABELS and self._is_model(model, status)
            model = model[:LABEL_LENGTH] if known else OTHER
        if len(self.accounts) >= MOST_ACCOUNTS:
            key = model = OTHER
        if key != OTHER:
            self._keys.add(key)
        if model and model != OTHER:
            self._models.add(model)
        return self.accounts.setdefault((key, model), Account())

    def _is_model(self, name: str, status: int) -> bool:
        """It is listed here, or an engine serves it; one that does not say what it serves shows it by its answer."""
        endpoints = self.endpoints.all
        return (
            name in self.configured_models
            or any(name in endpoint.models for endpoint in endpoints)
            or (status < 400 and not (endpoints and all(endpoint.models for endpoint in endpoints)))
        )

    # what is told

    @property
    def ended(self) -> int:
        return self.arrivals - self.in_flight

    @property
    def requests(self) -> dict[int, int]:
        """Ended requests by status; 499 when the client left."""
        counts: defaultdict[int, int] = defaultdict(int)
        for account in self.accounts.values():
            for status, count in account.requests.items():
                counts[status] += count
        return counts

    def passed(self, seconds: float) -> Mark:
        """What has come since ``seconds`` ago, or a slot longer; its ``time`` is how long that is."""
        now = time.perf_counter()
        if now >= self._turn_at:
            self._turn(now)
        then = next((mark for mark in reversed(self._marks) if mark.time <= now - seconds), self._marks[0])
        return Mark(
            now - then.time,
            self.arrivals - then.arrivals,
            self.ended - then.ended,
            self._prompt_tokens - then.prompt_tokens,
            self._cached_tokens - then.cached_tokens,
        )

    @property
    def live(self) -> int:
        """The traffic there is: requests that came in the last ten seconds, and those under way."""
        return self.passed(10.0).arrivals + self.in_flight

    @property
    def hit_ratio(self) -> float | None:
        """Cached by prompt tokens of the last minute; None when no engine told."""
        passed = self.passed(60.0)
        return passed.cached_tokens / passed.prompt_tokens if passed.prompt_tokens else None

    @property
    def drain_seconds(self) -> float | None:
        """How long what is under way will take, at the rate of the last ten seconds; held requests do not count."""
        under_way = self.in_flight - self.rooms.holding.count()
        if under_way <= 0:
            return 0.0
        passed = self.passed(10.0)
        return under_way * passed.time / passed.ended if passed.ended else None

    def saturation(self, service: str) -> float | None:
        """How full a service is, 1 for as much as it should have; None when nobody can tell.

        With a queue: requests its engines have by what they may have. Else by what its engines tell: those that wait
        inside, and their KV cache, whichever is worse, as a mean over the engines.
        """
        queue = self.rooms.queues.get(service)
        state = queue.state() if queue is not None else None
        if state is not None and state.capacity:
            return state.running / state.capacity
        oldest = time.monotonic() - STALE_SECONDS
        full = [
            max(endpoint.waiting / FULL_WAITING, (endpoint.kv_usage or 0.0) / FULL_KV)
            for endpoint in self.endpoints.all
            if endpoint.service == service and endpoint.up and endpoint.told_at > oldest
        ]
        return sum(full) / len(full) if full else None

    @property
    def services(self) -> list[str]:
        """Of endpoints, and of requests that found none."""
        rooms = self.rooms
        of_endpoints = {endpoint.service for endpoint in self.endpoints.all}
        return sorted(of_endpoints | rooms.queues.keys() | rooms.holding.arrivals.keys())

    def render(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        yield _counter(names.ROUTER_REQUESTS, "Finished requests by status.", "code", self.requests)
        yield _counter(names.ROUTER_RETRIES, "Requests sent on to another endpoint.", "reason", self.retries)
        yield CounterMetricFamily(
            names.ROUTER_RETRIES_EXHAUSTED, "Retries there was no budget for.", value=self.retries_exhausted()
        )
        yield _counter(names.ROUTER_REFUSED, "Requests the router refused, by error code.", "reason", self.refused)
        yield _counter(names.ROUTER_RESUMES, "Streams that lost their engine, by outcome.", "outcome", self.resumes)
        yield GaugeMetricFamily(names.ROUTER_IN_FLIGHT, "Requests under way.", value=self.in_flight)
        yield family(
            names.ROUTER_TTFT, "From the request to the first byte of its answer.", BUCKETS, self.ttft, self.unary
        )
        yield family(names.ROUTER_TTFT_STREAM, "The same, of streams.", BUCKETS, self.ttft)
        yield family(
            names.ROUTER_TPOT, "Per output token after the first, of streams that tell it.", TOKEN_BUCKETS, self.tpot
        )
        yield family(
            names.ROUTER_E2E, "From the request to the last byte of its answer.", BUCKETS, self.e2e, self.failed
        )
        yield from self._collect_accounts()
        yield from self._collect_load()
        yield from self._collect_endpoints()

    def _collect_accounts(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            names.ROUTER_MODEL_REQUESTS, "Finished requests by key, model and status.", labels=["key", "model", "code"]
        )
        tokens = CounterMetricFamily(
            names.ROUTER_TOKENS,
            "Tokens by key and model; cached ones are part of the prompt's.",
            labels=["key", "model", "kind"],
        )
        for (key, model), account in self.accounts.items():
            for status, count in account.requests.items():
                requests.add_metric([key, model, str(status)], count)
            tokens.add_metric([key, model, "prompt"], account.prompt_tokens)
            tokens.add_metric([key, model, "cached"], account.cached_tokens)
            tokens.add_metric([key, model, "completion"], account.completion_tokens)
        yield requests
        yield tokens

    def _collect_load(self) -> Iterator[Metric]:
        hits = GaugeMetricFamily(names.ROUTER_HIT_RATIO, "Cached by prompt tokens, of the last minute.")
        if (ratio := self.hit_ratio) is not None:
            hits.add_metric([], ratio)
        yield hits
        drain = GaugeMetricFamily(names.ROUTER_DRAIN, "Until all requests under way have ended, at the present rate.")
        if (seconds := self.drain_seconds) is not None:
            drain.add_metric([], seconds)
        yield drain
        yield family(names.ROUTER_QUEUE_WAIT, "In the queue; requests that had to wait.", BUCKETS, self.rooms.waited)
        requests = _of_service(names.ROUTER_QUEUE_REQUESTS, "Requests in the queue.")
        tokens = _of_service(names.ROUTER_QUEUE_TOKENS, "Tokens of the requests in the queue, answers included.")
        size = _of_service(names.ROUTER_QUEUE_BYTES, "Bytes of the requests in the queue.")
        oldest = _of_service(names.ROUTER_QUEUE_OLDEST, "Age of the oldest request in the queue.")
        p95 = _of_service(names.ROUTER_QUEUE_P95, "Age that 95 % of the requests in the queue have not reached.")
        full = _of_service(names.ROUTER_SATURATION, "How full the engines are; 1: as much as they should have.")
        for service in self.services:
            if (part := self.saturation(service)) is not None:
                full.add_metric([service], part)
        for service, queue in self.rooms.queues.items():
            state = queue.state()
            requests.add_metric([service], state.requests)
            tokens.add_metric([service], state.tokens)
            size.add_metric([service], state.bytes)
            oldest.add_metric([service], state.oldest_seconds)
            p95.add_metric([service], state.p95_seconds)
        yield from (requests, tokens, size, oldest, p95, full)
        holding = self.rooms.holding
        held = _of_service(names.ROUTER_HELD, "Requests that wait because no engine is ready.")
        came = CounterMetricFamily(
            names.ROUTER_HELD_ARRIVALS, "Requests that found no engine ready and were held.", labels=["service"]
        )
        for service, count in holding.arrivals.items():
            held.add_metric([service], holding.count(service))
            came.add_metric([service], count)
        yield held
        yield came

    def _collect_endpoints(self) -> Iterator[Metric]:
        up = GaugeMetricFamily(names.ROUTER_ENDPOINT_UP, "1 when the active check passed.", labels=["endpoint"])
        busy = GaugeMetricFamily(names.ROUTER_ENDPOINT_IN_FLIGHT, "Requests under way on it.", labels=["endpoint"])
        breaker = GaugeMetricFamily(names.ROUTER_BREAKER, "0 closed, 1 half open, 2 open.", labels=["endpoint"])
        weight = GaugeMetricFamily(names.ROUTER_ENDPOINT_WEIGHT, "Below 1 while it starts slowly.", labels=["endpoint"])
        now = time.monotonic()
        for endpoint in self.endpoints.all:
            up.add_metric([endpoint.name], float(endpoint.up is True))
            busy.add_metric([endpoint.name], endpoint.in_flight)
            breaker.add_metric([endpoint.name], _BREAKER_STATES[endpoint.breaker.state(now)])
            weight.add_metric([endpoint.name], endpoint.weight)
        yield from (up, busy, breaker, weight)


def _counter(name: str, text: str, label: str, counts: dict[int, int] | dict[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in sorted(counts.items()):
        family.add_metric([str(value)], count)
    return family


def _of_service(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=["service"])
