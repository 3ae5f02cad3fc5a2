"""The autoscaler's signals: ``GET /internal/signals``."""

import time
from collections import Counter
from collections.abc import Sequence

from blade_protocol.signals import Percentiles, RouterSignals, ServiceSignals
from blade_router.admission.queue_state import QueueState
from blade_router.observability.metrics import Metrics
from blade_router.statistics.distribution import Distribution
from blade_router.statistics.revisions import merge_revisions
from blade_router.statistics.shadow import merge_shadows

_STARTED = time.time()


def router_signals(metrics: Metrics) -> RouterSignals:
    """The present signals of this process."""
    passed = metrics.window(60.0)
    accounts = list(metrics.accounts)
    return RouterSignals(
        started=_STARTED,
        time=time.time(),
        in_flight=metrics.in_flight,
        idle_seconds=_idle_seconds(metrics),
        arrivals=metrics.arrivals,
        arrivals_per_second=passed.arrivals / max(1.0, passed.time),
        finished=metrics.ended,
        failed=sum(count for status, count in metrics.requests.items() if status >= 500),
        prompt_tokens=sum(account.prompt_tokens for account in accounts),
        cached_tokens=sum(account.cached_tokens for account in accounts),
        completion_tokens=sum(account.completion_tokens for account in accounts),
        prefix_hit_ratio=metrics.hit_ratio,
        ttft_seconds=_percentiles(metrics.ttft),
        tpot_seconds=_percentiles(metrics.tpot),
        e2e_seconds=_percentiles(metrics.e2e),
        drain_seconds=metrics.drain_seconds,
        retries=sum(metrics.retries.values()),
        retries_refused=metrics.retries_exhausted(),
        refused=dict(metrics.refused),
        services=tuple(_service(metrics, name) for name in metrics.services),
        revisions=metrics.comparison.signals() if metrics.comparison is not None else (),
        shadows=(metrics.shadow.signals(),) if metrics.shadow is not None else (),
    )


def _idle_seconds(metrics: Metrics) -> float:
    """Requests that no engine gets (lists of models, refused ones) keep nobody busy."""
    pending = metrics.request_queues.pending
    if pending.count() or any(queue.state().requests for queue in metrics.request_queues.queues.values()):
        return 0.0
    if any(endpoint.in_flight for endpoint in metrics.endpoints.all):
        return 0.0
    return max(0.0, min(time.perf_counter() - metrics.answered_at, time.monotonic() - pending.active_at))


def _service(metrics: Metrics, name: str) -> ServiceSignals:
    request_queues = metrics.request_queues
    queue = request_queues.queues.get(name)
    state = queue.state() if queue is not None else QueueState()
    endpoints = [endpoint for endpoint in metrics.endpoints.all if endpoint.config.service == name]
    running = sum(endpoint.in_flight for endpoint in endpoints)
    return ServiceSignals(
        service=name,
        endpoints=len(endpoints),
        usable=metrics.endpoints.usable_count(name),
        running=running,
        capacity=state.capacity,
        saturation=metrics.saturation(name),
        queued_requests=state.requests,
        queued_tokens=state.tokens,
        queued_bytes=state.bytes,
        queue_oldest_seconds=state.oldest_seconds,
        queue_p95_seconds=state.p95_seconds,
        held_requests=request_queues.pending.count(name),
        held_oldest_seconds=request_queues.pending.oldest(name),
        held_arrivals=request_queues.pending.arrivals.get(name, 0),
    )


def merge_signals(all_signals: Sequence[RouterSignals]) -> RouterSignals:
    """Merge the signals of several processes: counts are summed, of durations and percentiles the worst counts."""
    first, *others = all_signals
    for other in others:
        first = _merge_two(first, other)
    return first


def _merge_two(one: RouterSignals, other: RouterSignals) -> RouterSignals:
    services = {service.service: service for service in one.services}
    for service in other.services:
        known = services.get(service.service)
        services[service.service] = service if known is None else _merge_services(known, service)
    ratio = one.prefix_hit_ratio
    if other.prefix_hit_ratio is not None:
        share = other.arrivals_per_second / ((one.arrivals_per_second + other.arrivals_per_second) or 1.0)
        ratio = other.prefix_hit_ratio if ratio is None else ratio * (1.0 - share) + other.prefix_hit_ratio * share
    return RouterSignals(
        started=min(one.started, other.started),
        time=max(one.time, other.time),
        in_flight=one.in_flight + other.in_flight,
        idle_seconds=min((idle for idle in (one.idle_seconds, other.idle_seconds) if idle is not None), default=None),
        arrivals=one.arrivals + other.arrivals,
        arrivals_per_second=one.arrivals_per_second + other.arrivals_per_second,
        finished=one.finished + other.finished,
        failed=one.failed + other.failed,
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        cached_tokens=one.cached_tokens + other.cached_tokens,
        completion_tokens=one.completion_tokens + other.completion_tokens,
        prefix_hit_ratio=ratio,
        ttft_seconds=_max_percentiles(one.ttft_seconds, other.ttft_seconds),
        tpot_seconds=_max_percentiles(one.tpot_seconds, other.tpot_seconds),
        e2e_seconds=_max_percentiles(one.e2e_seconds, other.e2e_seconds),
        drain_seconds=_max_known(one.drain_seconds, other.drain_seconds),
        retries=one.retries + other.retries,
        retries_refused=one.retries_refused + other.retries_refused,
        refused=dict(Counter(one.refused) + Counter(other.refused)),
        services=tuple(services[name] for name in sorted(services)),
        revisions=merge_revisions(one.revisions, other.revisions),
        shadows=merge_shadows(one.shadows, other.shadows),
    )


def _merge_services(one: ServiceSignals, other: ServiceSignals) -> ServiceSignals:
    running, capacity = one.running + other.running, one.capacity + other.capacity
    return ServiceSignals(
        service=one.service,
        endpoints=max(one.endpoints, other.endpoints),
        usable=max(one.usable, other.usable),
        running=running,
        capacity=capacity,
        saturation=running / capacity if capacity else _max_known(one.saturation, other.saturation),
        queued_requests=one.queued_requests + other.queued_requests,
        queued_tokens=one.queued_tokens + other.queued_tokens,
        queued_bytes=one.queued_bytes + other.queued_bytes,
        queue_oldest_seconds=max(one.queue_oldest_seconds, other.queue_oldest_seconds),
        queue_p95_seconds=max(one.queue_p95_seconds, other.queue_p95_seconds),
        held_requests=one.held_requests + other.held_requests,
        held_oldest_seconds=max(one.held_oldest_seconds, other.held_oldest_seconds),
        held_arrivals=one.held_arrivals + other.held_arrivals,
    )


def _max_known(*numbers: float | None) -> float | None:
    return max((number for number in numbers if number is not None), default=None)


def _max_percentiles(one: Percentiles, other: Percentiles) -> Percentiles:
    return Percentiles(p50=max(one.p50, other.p50), p90=max(one.p90, other.p90), p99=max(one.p99, other.p99))


def _percentiles(durations: Distribution) -> Percentiles:
    p50, p90, p99 = durations.percentiles(0.5, 0.9, 0.99)
    return Percentiles(p50=p50, p90=p90, p99=p99)
