"""The router's metrics. The hot path adds plain numbers; the Prometheus format is made at scrape time.

A labelled prometheus-client counter costs more per request than choosing an endpoint does.
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric

from blade_protocol import metrics as names
from blade_router.admission.request_queues import RequestQueues
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.observability.accounts import OTHER, Accounts
from blade_router.observability.catalogue import CATALOGUE, counter, gauge
from blade_router.observability.server_load import ServerLoad
from blade_router.request.usage import Usage
from blade_router.statistics.distribution import (
    BUCKETS,
    FIRST_BUCKETS,
    SLOT_SECONDS,
    SLOTS,
    TOKEN_BUCKETS,
    Distribution,
    histogram_family,
)
from blade_router.statistics.revisions import Comparison
from blade_router.statistics.shadow import ShadowCounts, ShadowTotals

FULL_WAITING = 5
FULL_KV = 0.8
"""Requests waiting inside an engine, and KV-cache usage, at which it counts as full."""
STALE_SECONDS = 10.0
"""Maximum age of a load report that counts."""

_BREAKER_STATES = {"closed": 0, "half-open": 1, "open": 2}


class CounterSnapshot(NamedTuple):
    """Counters at one moment: the difference to now is a rate."""

    time: float
    arrivals: int
    ended: int
    prompt_tokens: int
    cached_tokens: int


class Metrics:
    """The router's counters, and a Prometheus collector over them. Times are ``time.perf_counter``'s."""

    def __init__(self, endpoints: EndpointSet, request_queues: RequestQueues | None = None) -> None:
        self.endpoints = endpoints
        self.request_queues = request_queues or RequestQueues(endpoints)
        self.in_flight = 0
        self.arrivals = 0
        self.retries: defaultdict[str, int] = defaultdict(int)
        """Requests retried on another endpoint, by the failure of the one before."""
        self.refused: defaultdict[str, int] = defaultdict(int)
        """Requests refused by the router itself, by error code."""
        self.resumes: defaultdict[str, int] = defaultdict(int)
        """Streams whose engine was lost after their first byte, by outcome: ``resumed``; ``refused`` by the replica
        that was queried; ``failed`` on all that were; ``nobody`` was there to query; ``unknown`` what was sent;
        ``suspected`` of killing engines is the request."""
        self.server_load: Callable[[], ServerLoad] = ServerLoad
        """Set by the server's owner."""
        self.replica_sync: Callable[[], tuple[dict[str, int], int]] = _no_sync
        """Events of router replica sync, and the siblings whose events arrive."""
        self.retries_exhausted: Callable[[], int] = lambda: 0
        self.spans_dropped: Callable[[], int] = lambda: 0
        """Retries over the retry budget; set by the budget's owner."""
        self.ttft = Distribution()
        """Time to first byte of streams."""
        self.unary = Distribution()
        """The same of unary responses."""
        self.tpot = Distribution()
        self.e2e = Distribution()
        """End-to-end time of successful requests."""
        self.failed = Distribution()
        """The same of all others."""
        self._distributions = (self.ttft, self.unary, self.tpot, self.e2e, self.failed, self.request_queues.waited)
        self.accounts = Accounts(self._is_listed, self._may_be_model)
        self._prompt_tokens = 0
        """Of requests whose engine reports their cached tokens."""
        self._cached_tokens = 0
        self.comparison: Comparison | None = None
        """Of the revisions that have weights; None while there are none. Set by the configuration's owner."""
        self.shadow: ShadowCounts | None = None
        """Of copies of requests, while such are sent. Set by the configuration's owner."""
        self.shadow_totals = ShadowTotals()
        self.configured_models: frozenset[str] = frozenset()
        """Model names in the configuration; set by its owner."""
        now = time.perf_counter()
        self.answered_at = now
        """When a response of an engine ended last; else when the process started."""
        self._rotate_at = now + SLOT_SECONDS
        self._snapshots = deque([CounterSnapshot(now, 0, 0, 0, 0)], maxlen=SLOTS)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    # called by the data path

    def begin(self, now: float) -> None:
        """Count a request that has arrived."""
        if now >= self._rotate_at:
            self._rotate(now)
        self.in_flight += 1
        self.arrivals += 1

    def end(
        self,
        status: int,
        started: float,
        first_byte: float,
        streamed: bool,
        key: str,
        model: str | None,
        usage: Usage | None,
        outputs: int = 1,
    ) -> None:
        """Count a request that has ended, once whatever the number of its outputs.

        Args:
            first_byte: when the first byte of its response was sent; 0 without a response of an engine.
            outputs: those its usage counts the tokens of.
            key, model: label values; surplus ones, and those of failed requests only, are counted together.
        """
        now = time.perf_counter()
        if now >= self._rotate_at:
            self._rotate(now)
        self.in_flight -= 1
        account = self.accounts.find(key, model or "", status)
        account.count(status)
        if first_byte:
            self.answered_at = now
            (self.ttft if streamed else self.unary).observe(first_byte - started)
        if status >= 400:
            self.failed.observe(now - started)
            return
        self.e2e.observe(now - started)
        if usage is None:
            return
        tokens = usage.completion_tokens
        if streamed and tokens > outputs:  # which are generated at the same time
            self.tpot.observe((now - first_byte) / (tokens / outputs - 1))
        account.completion_tokens += tokens
        account.prompt_tokens += usage.prompt_tokens
        if usage.cached_tokens is not None:
            account.cached_tokens += usage.cached_tokens
            self._prompt_tokens += usage.prompt_tokens
            self._cached_tokens += usage.cached_tokens

    def malformed(self, status: int, code: str) -> None:
        """Count a malformed request that was refused with an error."""
        self.arrivals += 1
        self.accounts.find("", OTHER, status).count(status)
        self.refused[code] += 1

    def _rotate(self, now: float) -> None:
        """Begin a new slot of the last minute. Nothing was counted since the end of the one before."""
        self._snapshots.append(self._snapshot(self._rotate_at))
        slots = int((now - self._rotate_at) / SLOT_SECONDS) + 1
        self._rotate_at += slots * SLOT_SECONDS
        for distribution in self._distributions:
            distribution.rotate(slots)
        if slots > 1:
            self._snapshots.append(self._snapshot(self._rotate_at - SLOT_SECONDS))

    def _snapshot(self, now: float) -> CounterSnapshot:
        return CounterSnapshot(now, self.arrivals, self.ended, self._prompt_tokens, self._cached_tokens)

    def _is_listed(self, model: str) -> bool:
        return model in self.configured_models or any(
            model in endpoint.report.models for endpoint in self.endpoints.all
        )

    def _may_be_model(self) -> bool:
        """An engine lists no models: one it serves need not be known."""
        endpoints = self.endpoints.all
        return not (endpoints and all(endpoint.report.models for endpoint in endpoints))

    # readings

    @property
    def ended(self) -> int:
        return self.arrivals - self.in_flight

    @property
    def requests(self) -> dict[int, int]:
        """Ended requests by status; 499 when the client left."""
        counts: defaultdict[int, int] = defaultdict(int)
        for account in self.accounts:
            for status, count in account.requests.items():
                counts[status] += count
        return counts

    def window(self, seconds: float) -> CounterSnapshot:
        """The counters' change since ``seconds`` ago, or a slot longer; its ``time`` is the window's length."""
        now = time.perf_counter()
        if now >= self._rotate_at:
            self._rotate(now)
        then = next(
            (snapshot for snapshot in reversed(self._snapshots) if snapshot.time <= now - seconds), self._snapshots[0]
        )
        return CounterSnapshot(
            now - then.time,
            self.arrivals - then.arrivals,
            self.ended - then.ended,
            self._prompt_tokens - then.prompt_tokens,
            self._cached_tokens - then.cached_tokens,
        )

    @property
    def live(self) -> int:
        """The traffic that retries are budgeted by: requests of the last ten seconds, and those in flight."""
        return self.window(10.0).arrivals + self.in_flight

    @property
    def hit_ratio(self) -> float | None:
        """Cached by prompt tokens of the last minute; None when no engine reports them."""
        passed = self.window(60.0)
        return passed.cached_tokens / passed.prompt_tokens if passed.prompt_tokens else None

    @property
    def drain_seconds(self) -> float | None:
        """Seconds until the in-flight requests have ended, at the rate of the last ten; held requests do not count."""
        in_flight = self.in_flight - self.request_queues.pending.count()
        if in_flight <= 0:
            return 0.0
        passed = self.window(10.0)
        return in_flight * passed.time / passed.ended if passed.ended else None

    def saturation(self, service: str) -> float | None:
        """The load of a service relative to its target, 1 for as much as it should have; None when unknown.

        With a queue: the requests in its engines by their capacity. Otherwise by its engines' load reports: waiting
        requests or KV-cache usage, whichever is worse, as a mean over the engines.
        """
        queue = self.request_queues.queues.get(service)
        state = queue.state() if queue is not None else None
        if state is not None and state.capacity:
            return state.running / state.capacity
        oldest = time.monotonic() - STALE_SECONDS
        full = [
            max(endpoint.report.waiting / FULL_WAITING, (endpoint.report.kv_usage or 0.0) / FULL_KV)
            for endpoint in self.endpoints.all
            if endpoint.config.service == service and endpoint.health.up and endpoint.report.reported_at > oldest
        ]
        return sum(full) / len(full) if full else None

    @property
    def services(self) -> list[str]:
        """The services of endpoints, and of requests that found none."""
        request_queues = self.request_queues
        of_endpoints = {endpoint.config.service for endpoint in self.endpoints.all}
        return sorted(of_endpoints | request_queues.queues.keys() | request_queues.pending.arrivals.keys())

    def render(self) -> bytes:
        """Render the Prometheus text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        yield _counter(names.ROUTER_REQUESTS, self.requests)
        yield _counter(names.ROUTER_RETRIES, self.retries)
        yield counter(names.ROUTER_RETRIES_EXHAUSTED, self.retries_exhausted())
        yield counter(names.ROUTER_SPANS_DROPPED, self.spans_dropped())
        yield _counter(names.ROUTER_REFUSED, self.refused)
        yield _counter(names.ROUTER_RESUMES, self.resumes)
        shadows = self.shadow_totals
        yield _counter(names.ROUTER_SHADOWS, shadows.requests)
        yield _counter(names.ROUTER_SHADOW_TEXTS, shadows.texts)
        yield gauge(names.ROUTER_IN_FLIGHT, self.in_flight)
        yield from self.server_load().families()
        yield _histogram(names.ROUTER_TTFT, FIRST_BUCKETS, self.ttft, self.unary)
        yield _histogram(names.ROUTER_TTFT_STREAM, FIRST_BUCKETS, self.ttft)
        yield _histogram(names.ROUTER_TPOT, TOKEN_BUCKETS, self.tpot)
        yield _histogram(names.ROUTER_E2E, BUCKETS, self.e2e, self.failed)
        yield from self._collect_accounts()
        yield from self._collect_load()
        events, siblings = self.replica_sync()
        yield _counter(names.ROUTER_SYNC_EVENTS, events)
        yield gauge(names.ROUTER_SYNC_SIBLINGS, siblings)
        yield from self._collect_endpoints()

    def _collect_accounts(self) -> Iterator[Metric]:
        requests, tokens = counter(names.ROUTER_MODEL_REQUESTS), counter(names.ROUTER_TOKENS)
        for (key, model), account in self.accounts.all.items():
            for status, count in account.requests.items():
                requests.add_metric([key, model, str(status)], count)
            tokens.add_metric([key, model, "prompt"], account.prompt_tokens)
            tokens.add_metric([key, model, "cached"], account.cached_tokens)
            tokens.add_metric([key, model, "completion"], account.completion_tokens)
        yield requests
        yield tokens

    def _collect_load(self) -> Iterator[Metric]:
        yield gauge(names.ROUTER_HIT_RATIO, self.hit_ratio)
        yield gauge(names.ROUTER_DRAIN, self.drain_seconds)
        yield _histogram(names.ROUTER_QUEUE_WAIT, FIRST_BUCKETS, self.request_queues.waited)
        requests, tokens = gauge(names.ROUTER_QUEUE_REQUESTS), gauge(names.ROUTER_QUEUE_TOKENS)
        size, oldest = gauge(names.ROUTER_QUEUE_BYTES), gauge(names.ROUTER_QUEUE_OLDEST)
        p95, full = gauge(names.ROUTER_QUEUE_P95), gauge(names.ROUTER_SATURATION)
        for service in self.services:
            if (part := self.saturation(service)) is not None:
                full.add_metric([service], part)
        for service, queue in self.request_queues.queues.items():
            state = queue.state()
            requests.add_metric([service], state.requests)
            tokens.add_metric([service], state.tokens)
            size.add_metric([service], state.bytes)
            oldest.add_metric([service], state.oldest_seconds)
            p95.add_metric([service], state.p95_seconds)
        yield from (requests, tokens, size, oldest, p95, full)
        holding = self.request_queues.pending
        held, arrivals = gauge(names.ROUTER_HELD), counter(names.ROUTER_HELD_ARRIVALS)
        for service, count in holding.arrivals.items():
            held.add_metric([service], holding.count(service))
            arrivals.add_metric([service], count)
        yield held
        yield arrivals

    def _collect_endpoints(self) -> Iterator[Metric]:
        up, busy = gauge(names.ROUTER_ENDPOINT_UP), gauge(names.ROUTER_ENDPOINT_IN_FLIGHT)
        breaker, weight = gauge(names.ROUTER_BREAKER), gauge(names.ROUTER_ENDPOINT_WEIGHT)
        now = time.monotonic()
        for endpoint in self.endpoints.all:
            up.add_metric([endpoint.name], float(endpoint.health.up is True))
            busy.add_metric([endpoint.name], endpoint.in_flight)
            breaker.add_metric([endpoint.name], _BREAKER_STATES[endpoint.health.breaker.state(now)])
            weight.add_metric([endpoint.name], endpoint.health.weight)
        yield from (up, busy, breaker, weight)
        yield gauge(names.ROUTER_CONFINED_KEYS, len(self.endpoints.confinement.confined_keys()))


def _counter(name: str, counts: dict[int, int] | dict[str, int]) -> Metric:
    family = counter(name)
    for value, count in sorted(counts.items()):
        family.add_metric([str(value)], count)
    return family


def _histogram(name: str, buckets: tuple[float, ...], *parts: Distribution) -> Metric:
    return histogram_family(name, CATALOGUE[name].text, buckets, *parts)


def _no_sync() -> tuple[dict[str, int], int]:
    return {}, 0
