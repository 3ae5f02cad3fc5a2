"""What the router counts. The hot path adds plain numbers; Prometheus' shape is made when someone asks.

A labelled prometheus-client counter costs more per request than choosing an endpoint does.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from blade_protocol import metrics as names
from blade_router.admission.waiting import WaitingRooms
from blade_router.distribution import TOKEN_BUCKETS, Distribution
from blade_router.endpoints import EndpointSet
from blade_router.rates import Rate
from blade_router.usage import Usage

MOST_LABELS = 100
"""Names of keys, and of models, that are told apart; further ones are counted as ``OTHER``."""
MOST_ACCOUNTS = 1000
"""Pairs of the two."""
OTHER = "other"

_BREAKER_STATES = {"closed": 0, "half-open": 1, "open": 2}


class Account:
    """What was asked for under one key, of one model."""

    __slots__ = ("cached_tokens", "completion_tokens", "prompt_tokens", "requests")

    def __init__(self) -> None:
        self.requests: dict[int, int] = {}
        """By status."""
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0


class Metrics:
    """The router's counters, and a Prometheus collector over them. Times are ``time.perf_counter``'s."""

    def __init__(self, endpoints: EndpointSet, rooms: WaitingRooms | None = None) -> None:
        self.endpoints = endpoints
        self.rooms = rooms or WaitingRooms(endpoints)
        self.in_flight = 0
        self.arrivals = Rate(60)
        self.ends = Rate(10)
        self.requests: defaultdict[int, int] = defaultdict(int)
        """Finished requests by status; 499 when the client left."""
        self.retries: defaultdict[str, int] = defaultdict(int)
        """Requests sent to another endpoint, by what was wrong with the one before."""
        self.refused: defaultdict[str, int] = defaultdict(int)
        """Requests the router answered with an error of its own, by the error's code."""
        self.resumes: defaultdict[str, int] = defaultdict(int)
        """Streams that lost their engine, by what became of them."""
        self.retries_exhausted: Callable[[], int] = lambda: 0
        """How many retries there was no budget for; set by who keeps the budget."""
        self.first_byte = Distribution()
        self.duration = Distribution()
        self.ttft = Distribution()
        self.tpot = Distribution(TOKEN_BUCKETS)
        self.e2e = Distribution()
        """Durations of successful requests; ``duration`` counts all."""
        self.accounts: dict[tuple[str, str], Account] = {}
        """By key and model."""
        self.prompt_tokens = Rate(60)
        self.cached_tokens = Rate(60)
        self._keys: set[str] = set()
        self._models: set[str] = set()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    # what the data path calls

    def begin(self, now: float) -> None:
        """A request has come."""
        self.in_flight += 1
        self.arrivals.add(now)

    def end(
        self, status: int, started: float, *, key: str, model: str, streamed_at: float, usage: Usage | None
    ) -> None:
        """It has ended.

        Args:
            streamed_at: when the first byte of its streamed answer went out; 0 when it did not stream.
            key, model: names; those that are many or come from failed requests only are counted together.
        """
        now = time.perf_counter()
        self.in_flight -= 1
        self.requests[status] += 1
        self.ends.add(now)
        duration = now - started
        self.duration.observe(duration)
        account = self.accounts.get((key, model))
        if account is None:
            account = self._account(key, model, status)
        account.requests[status] = account.requests.get(status, 0) + 1
        if status >= 400:
            return
        self.e2e.observe(duration)
        if streamed_at:
            self.ttft.observe(streamed_at - started)
        if usage is None:
            return
        tokens = usage.completion_tokens
        if streamed_at and tokens > 1:
            self.tpot.observe((now - streamed_at) / (tokens - 1))
        account.completion_tokens += tokens
        account.prompt_tokens += usage.prompt_tokens
        if usage.cached_tokens is not None:
            account.cached_tokens += usage.cached_tokens
            self.prompt_tokens.add(now, usage.prompt_tokens)
            self.cached_tokens.add(now, usage.cached_tokens)

    def _account(self, key: str, model: str, status: int) -> Account:
        """A new one, or the one for what is not told apart: clients choose names, and must not choose how many."""
        if key not in self._keys and len(self._keys) >= MOST_LABELS:
            key = OTHER
        if model not in self._models and (status >= 400 or len(self._models) >= MOST_LABELS):
            model = OTHER
        if len(self.accounts) >= MOST_ACCOUNTS:
            key = model = OTHER
        if key != OTHER:
            self._keys.add(key)
        if model != OTHER:
            self._models.add(model)
        return self.accounts.setdefault((key, model), Account())

    # what is told

    @property
    def hit_ratio(self) -> float | None:
        """Cached by prompt tokens of the last minute; None when no engine told."""
        now = time.perf_counter()
        prompt = self.prompt_tokens.recent(now)
        return self.cached_tokens.recent(now) / prompt if prompt else None

    @property
    def drain_seconds(self) -> float | None:
        """How long what is under way will take, at the rate of the last ten seconds; held requests do not count."""
        under_way = self.in_flight - self.rooms.holding.count()
        if under_way <= 0:
            return 0.0
        rate = self.ends.per_second(time.perf_counter())
        return under_way / rate if rate else None

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
        yield self.first_byte.family(names.ROUTER_TTFT, "From the request to the first byte of its answer.")
        yield self.ttft.family(names.ROUTER_TTFT_STREAM, "From the request to the first byte of its stream.")
        yield self.tpot.family(names.ROUTER_TPOT, "Per output token after the first, of streams that tell their usage.")
        yield self.duration.family(names.ROUTER_E2E, "From the request to the last byte of its answer.")
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
        yield self.rooms.waited.family(names.ROUTER_QUEUE_WAIT, "In the queue; requests that had to wait.")
        requests = _of_service(names.ROUTER_QUEUE_REQUESTS, "Requests in the queue.")
        tokens = _of_service(names.ROUTER_QUEUE_TOKENS, "Tokens of the requests in the queue, answers included.")
        size = _of_service(names.ROUTER_QUEUE_BYTES, "Bytes of the requests in the queue.")
        oldest = _of_service(names.ROUTER_QUEUE_OLDEST, "Age of the oldest request in the queue.")
        p95 = _of_service(names.ROUTER_QUEUE_P95, "Age that 95 % of the requests in the queue have not reached.")
        full = _of_service(names.ROUTER_SATURATION, "Requests the engines have, by what they may have.")
        for service, queue in self.rooms.queues.items():
            state = queue.state()
            requests.add_metric([service], state.requests)
            tokens.add_metric([service], state.tokens)
            size.add_metric([service], state.bytes)
            oldest.add_metric([service], state.oldest_seconds)
            p95.add_metric([service], state.p95_seconds)
            if state.capacity:
                full.add_metric([service], state.running / state.capacity)
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
