"""How loaded an endpoint is, and how much load a request brings."""

from collections.abc import Sequence

from blade_router.endpoints import Endpoint
from blade_router.request import ClientRequest

STALE = 3
"""Reports older than this many intervals say nothing any more."""
TOLD_SECONDS = 15.0
"""The same for what changes slowly, in seconds: three times the longest silence of an engine that is well."""
ANSWER_TOKENS = 256
"""Length of an answer whose request sets no limit: a guess."""
MIN_WEIGHT = 0.01


def requests_on(endpoint: Endpoint, now: float, interval: float) -> float:
    """Requests on an endpoint: this router's own, and what others have there by its last report.

    The report fades: what was there an instant ago counts in full, what was there three intervals ago not at all.
    Without this every router would send its next request to the engine that was idle at the last poll.
    """
    others = endpoint.running + endpoint.waiting - endpoint.in_flight
    if others > 0 and interval > 0:
        fresh = 1.0 - (now - endpoint.told_at) / (STALE * interval)
        if fresh > 0:
            return endpoint.in_flight + others * min(fresh, 1.0)
    return endpoint.in_flight


def told_capacity(endpoint: Endpoint, now: float) -> int:
    """Requests an endpoint can run at the same time; 0: unknown, or it is too long ago that it said so."""
    return endpoint.capacity if now - endpoint.told_at < TOLD_SECONDS else 0


def told_kv_usage(endpoint: Endpoint, now: float) -> float:
    """Share of its KV cache that is in use; 0: unknown, as above."""
    return endpoint.kv_usage or 0.0 if now - endpoint.told_at < TOLD_SECONDS else 0.0


def expected_tokens(request: ClientRequest) -> int:
    """Tokens a request may take, prompt and answers: a guess for the prompt, its own limit for the answer."""
    fields = request.fields
    limit = fields.token_limit
    return request.prompt.tokens + fields.samples * (ANSWER_TOKENS if limit is None else limit)


def seats(candidates: Sequence[Endpoint], factor: float, least: int = 4) -> int:
    """Requests each candidate may have when none may have more than ``factor`` times the mean, this one counted.

    ``least`` keeps an almost idle service from tearing apart what belongs together.
    """
    total = 1
    for endpoint in candidates:
        total += endpoint.in_flight
    return max(least, -int(-factor * total // len(candidates)))
