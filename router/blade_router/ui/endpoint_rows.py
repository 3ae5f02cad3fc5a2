"""Rows of the web UI about the engines, in full and as a client with a key may see them."""

import time
from collections.abc import Mapping

from blade_router.endpoints.endpoint import Endpoint
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.ui.engine_rates import EngineRates
from blade_router.ui.state import EndpointRow, EndpointState, Gpu

STALE_SECONDS = 30.0
"""Age of a load report from which on it says nothing of now."""


def endpoint_rows(endpoints: EndpointSet, rates: EngineRates, in_flight: Mapping[str, int]) -> tuple[EndpointRow, ...]:
    """All that is known of each; ``in_flight``: requests by endpoint, of all processes."""
    now = time.monotonic()
    return tuple(_row(endpoint, rates, in_flight.get(endpoint.name, 0), now) for endpoint in endpoints.all)


def public_rows(endpoints: EndpointSet, in_flight: Mapping[str, int]) -> tuple[EndpointRow, ...]:
    """What a client may know: no address and no load, which tell of others; ``in_flight``: the client's own requests,
    by endpoint."""
    now = time.monotonic()
    return tuple(
        EndpointRow(
            name=endpoint.public_name.decode("ascii"),
            address="",
            state=state_of(endpoint, now)[0],
            why=None,
            revision=endpoint.revision or None,
            weight=round(endpoint.health.weight, 3),
            models=(),
            adapters=(),
            in_flight=in_flight.get(endpoint.name, 0),
        )
        for endpoint in endpoints.all
    )


def _row(endpoint: Endpoint, rates: EngineRates, in_flight: int, now: float) -> EndpointRow:
    report = endpoint.report
    state, why = state_of(endpoint, now)
    known = bool(report.reported_at) and now - report.reported_at < STALE_SECONDS
    total = report.cache_tokens or None if known else None
    usage = report.kv_usage if known else None
    return EndpointRow(
        name=endpoint.name,
        address=endpoint.url,
        state=state,
        why=why,
        revision=endpoint.revision or None,
        weight=round(endpoint.health.weight, 3),
        models=tuple(sorted(report.models - report.adapters)),
        adapters=tuple(sorted(report.adapters)),
        in_flight=in_flight,
        running=report.running if known else None,
        waiting=report.waiting if known else None,
        max_running=(report.capacity or None) if known else None,
        kv_used=round(usage, 4) if usage is not None else None,
        kv_tokens=round(usage * total) if usage is not None and total is not None else None,
        kv_tokens_total=total,
        prefix_hit=rates.prefix_hit(endpoint) if known else None,
        acceptance=rates.acceptance((endpoint,)) if known else None,
        tokens_per_second=rates.tokens_per_second(endpoint) if known else None,
        gpus=_gpus(endpoint) if known else (),
    )


def _gpus(endpoint: Endpoint) -> tuple[Gpu, ...]:
    state = endpoint.report.state
    return tuple(Gpu(each.name, each.used, each.total) for each in state.gpus) if state is not None else ()


def state_of(endpoint: Endpoint, now: float) -> tuple[EndpointState, str | None]:
    """Its state, and why it is not ready."""
    health = endpoint.health
    if endpoint.config.draining or health.draining:
        return "draining", "it takes no new requests, and finishes those it has"
    if endpoint.config.starting:
        return "starting", "it is being started"
    if health.up is None:
        return "starting", "it has not been checked yet"
    if not health.up:
        return "unreachable", "its health check fails"
    if health.ejected_until > now:
        return "ejected", f"for {health.ejected_until - now:.0f} s, after {health.failures} failures"
    if not endpoint.usable(now):
        return "ejected", f"its circuit breaker is {health.breaker.state(now)}"
    return "ready", None
