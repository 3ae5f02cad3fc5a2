"""External: the endpoint for which a user's cost function returns the least.

The function is called once for each candidate of each request, in the event loop: it must not block. An exception, or
a result that is no number, is logged once a minute, and ``auto`` decides instead.
"""

import importlib
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies.base import Choice, Policy
from blade_router.policies.load import expected_tokens
from blade_router.policies.prefix_cache.choice import PrefixChoice
from blade_router.policies.prefix_cache.interface import PrefixCacheIndex
from blade_router.request.fields import RoutingFields
from blade_router.request.prompt_text import BLOCK, BYTES_PER_TOKEN
from blade_router.request.request import ClientRequest

logger = logging.getLogger("blade_router.policies")

LOG_INTERVAL = 60.0
"""Seconds between two log lines about the function."""


class EndpointView(NamedTuple):
    """What a cost function can read about an endpoint."""

    name: str
    url: str
    revision: str
    in_flight: int
    """Requests of this router on it."""
    running: int
    waiting: int
    """Requests by its own load report."""
    tokens_in_flight: int
    backlog_tokens: int
    """Prompt tokens it still has to prefill for this router."""
    kv_usage: float | None
    adapters: frozenset[str]
    weight: float
    cached_tokens: int
    """Tokens of this request's prompt that it probably has cached."""


class RequestView(NamedTuple):
    """What a cost function can read about a request."""

    path: str
    headers: Sequence[tuple[bytes, bytes]]
    fields: RoutingFields
    prompt_tokens: int
    """Estimated by size."""


Cost = Callable[[EndpointView, RequestView], float]


def load_cost_function(name: str) -> Cost:
    """Import the function ``MODULE:FUNCTION``.

    Raises:
        ValueError: it cannot be imported; says what is missing.
    """
    module, _, function = name.partition(":")
    if not module or not function:
        raise ValueError(f"it needs --cost MODULE:FUNCTION, not {name!r}")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{name!r} cannot be imported: {error}; is its folder on PYTHONPATH?") from None
    except Exception as error:  # a user's module may raise anything when it is imported
        raise ValueError(f"{name!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise ValueError(f"{name!r} is not a function")
    return found  # type: ignore[no-any-return]


class External(Policy):
    """A policy that minimises a user's cost function.

    Args:
        cost: the lowest wins; ties go to the first.
        fallback: decides when ``cost`` fails.
    """

    name = "external"

    def __init__(self, cost: Cost, index: PrefixCacheIndex, fallback: Policy) -> None:
        self._cost = cost
        self._index = index
        self._fallback = fallback
        self._next_log_at = 0.0

    def choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        prompt = request.prompt
        matched = self._index.match(prompt.chain, candidates)
        try:
            costs = self._costs(candidates, matched, request)
        except Exception as error:  # a user's code may raise anything
            self._log_failure(error)
            choice = self._fallback.choose(candidates, request)
            choice.reason = f"{self.name} failed {choice.reason}"
            return choice
        place = costs.index(min(costs))
        cached = matched[place]
        return PrefixChoice(
            candidates[place],
            f"{self.name} cost={costs[place]:.4g} prefix={cached}/{len(prompt.chain)}",
            self._index,
            prompt.chain,
            cached,
            (prompt.size - cached * BLOCK) // BYTES_PER_TOKEN,
            expected_tokens(request),
        )

    def _costs(self, candidates: Sequence[Endpoint], matched: Sequence[int], request: ClientRequest) -> list[float]:
        about = RequestView(request.path, request.headers, request.fields, request.prompt.tokens)
        costs = [
            float(self._cost(_view(endpoint, cached), about))
            for endpoint, cached in zip(candidates, matched, strict=True)
        ]
        if any(math.isnan(cost) for cost in costs):
            raise ValueError("it returned nan")
        return costs

    def _log_failure(self, error: Exception) -> None:
        now = time.monotonic()
        if now >= self._next_log_at:
            self._next_log_at = now + LOG_INTERVAL
            logger.error("the cost function failed, auto decides meanwhile: %s: %s", type(error).__name__, error)

    def scores(self, candidates: Sequence[Endpoint], request: ClientRequest) -> dict[str, dict[str, float]]:
        matched = self._index.match(request.prompt.chain, candidates)
        try:
            costs = self._costs(candidates, matched, request)
        except Exception:  # as above
            return self._fallback.scores(candidates, request)
        return {endpoint.name: {"cost": cost} for endpoint, cost in zip(candidates, costs, strict=True)}

    def dry_run_copy(self) -> Policy:
        dry_run = External(self._cost, self._index, self._fallback.dry_run_copy())
        dry_run._next_log_at = self._next_log_at
        return dry_run

    def removed(self, endpoint: Endpoint) -> None:
        self._fallback.removed(endpoint)


def _view(endpoint: Endpoint, cached: int) -> EndpointView:
    return EndpointView(
        name=endpoint.name,
        url=endpoint.url,
        revision=endpoint.revision,
        in_flight=endpoint.in_flight,
        running=endpoint.report.running,
        waiting=endpoint.report.waiting,
        tokens_in_flight=endpoint.tokens_in_flight,
        backlog_tokens=endpoint.backlog_tokens,
        kv_usage=endpoint.report.kv_usage,
        adapters=endpoint.report.adapters,
        weight=endpoint.health.weight,
        cached_tokens=cached * BLOCK // BYTES_PER_TOKEN,
    )
