"""The load of endpoints, and the load a request adds."""

from collections.abc import Sequence

from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies.base import Policy
from blade_router.request.output_size import samples, token_limit
from blade_router.request.request import ClientRequest

STALE = 3
"""Load reports older than this many intervals are ignored."""
REPORT_MAX_AGE = 15.0
"""Maximum age in seconds of reports of what changes slowly: three times an engine's longest report interval."""
DEFAULT_OUTPUT_TOKENS = 256
"""Estimated output tokens of a request without a limit."""
MIN_WEIGHT = 0.01


def choosable(policy: Policy, candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
    """Those a policy chooses from: they need not let the request wait, as long as there are some of that kind."""
    return candidates if policy.sticky else with_room(candidates)


def estimated_requests(endpoint: Endpoint, now: float, interval: float) -> float:
    """Requests on an endpoint: this router's own, and those of other routers by its last load report.

    The report fades: a fresh one counts in full, one of three intervals ago not at all. Without this every router would
    send its next request to the engine that was idle at the last poll.
    """
    report = endpoint.report
    others = report.running + report.waiting - endpoint.in_flight
    if others > 0 and interval > 0:
        fresh = 1.0 - (now - report.reported_at) / (STALE * interval)
        if fresh > 0:
            return endpoint.in_flight + others * min(fresh, 1.0)
    return endpoint.in_flight


def with_room(candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
    """Those in which a request need not wait for a slot; all where there are none."""
    return [endpoint for endpoint in candidates if endpoint.in_flight < endpoint.room] or candidates


def reported_capacity(endpoint: Endpoint, now: float) -> int:
    """The most requests an endpoint can run at the same time; 0: unknown, or the report is too old."""
    report = endpoint.report
    return report.capacity if now - report.reported_at < REPORT_MAX_AGE else 0


def reported_kv_usage(endpoint: Endpoint, now: float) -> float:
    """The share of its KV cache that is in use; 0: unknown, or the report is too old."""
    report = endpoint.report
    return report.kv_usage or 0.0 if now - report.reported_at < REPORT_MAX_AGE else 0.0


def expected_tokens(request: ClientRequest) -> int:
    """Tokens a request may take: the prompt's estimated size, and the request's own limit for the output."""
    fields = request.fields
    limit = token_limit(fields)
    return request.prompt.tokens + samples(fields) * (DEFAULT_OUTPUT_TOKENS if limit is None else limit)


def load_limit(candidates: Sequence[Endpoint], factor: float, least: int = 4) -> int:
    """The load bound: requests each candidate may have, so that none has over ``factor`` times the mean, with this one.

    ``least`` keeps an almost idle service from splitting up what belongs together.
    """
    total = 1
    for endpoint in candidates:
        total += endpoint.in_flight
    return max(least, -int(-factor * total // len(candidates)))
