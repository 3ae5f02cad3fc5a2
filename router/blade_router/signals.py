"""What an autoscaler is told, and who may ask: ``GET /internal/signals``."""

import hmac
import ipaddress
import time
from pathlib import Path

from blade_protocol.signals import Percentiles, RouterSignals, ServiceSignals
from blade_router.admission.queue import QueueState
from blade_router.distribution import Distribution
from blade_router.metrics import Metrics

_STARTED = time.time()


def router_signals(metrics: Metrics) -> RouterSignals:
    """The present numbers."""
    passed = metrics.passed(60.0)
    accounts = metrics.accounts.values()
    return RouterSignals(
        started=_STARTED,
        time=time.time(),
        in_flight=metrics.in_flight,
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
        services=tuple(_service(metrics, name) for name in _services(metrics)),
    )


def _services(metrics: Metrics) -> list[str]:
    """Of endpoints, and of requests that found none."""
    rooms = metrics.rooms
    found = (
        {endpoint.service for endpoint in metrics.endpoints.all} | rooms.queues.keys() | rooms.holding.arrivals.keys()
    )
    return sorted(found)


def _service(metrics: Metrics, name: str) -> ServiceSignals:
    rooms = metrics.rooms
    queue = rooms.queues.get(name)
    state = queue.state() if queue is not None else QueueState()
    endpoints = [endpoint for endpoint in metrics.endpoints.all if endpoint.service == name]
    running = sum(endpoint.in_flight for endpoint in endpoints)
    return ServiceSignals(
        service=name,
        endpoints=len(endpoints),
        usable=metrics.endpoints.usable_count(name),
        running=running,
        capacity=state.capacity,
        saturation=running / state.capacity if state.capacity else None,
        queued_requests=state.requests,
        queued_tokens=state.tokens,
        queued_bytes=state.bytes,
        queue_oldest_seconds=state.oldest_seconds,
        queue_p95_seconds=state.p95_seconds,
        held_requests=rooms.holding.count(name),
        held_oldest_seconds=rooms.holding.oldest(name),
        held_arrivals=rooms.holding.arrivals.get(name, 0),
    )


def _percentiles(durations: Distribution) -> Percentiles:
    p50, p90, p99 = durations.percentiles(0.5, 0.9, 0.99)
    return Percentiles(p50=p50, p90=p90, p99=p99)


def may_ask(token_file: Path | None, token: str, host: str) -> bool:
    """Whether someone at ``host`` who shows ``token`` may ask: with the token, or from this machine if there is none.

    A file that cannot be read lets nobody in.
    """
    if token_file is None:
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False
    try:
        expected = token_file.read_bytes().strip()
    except OSError:
        return False
    return bool(expected) and hmac.compare_digest(expected, token.encode("utf-8", "replace"))
