"""The endpoint for which a function of yours returns the least.

The function is called once for each candidate of each request, in the event loop: it must not wait for anything. What
it raises, or answers with no number, is logged once a minute, and ``auto`` decides instead.
"""

import copy
import importlib
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from blade_router.endpoints import Endpoint
from blade_router.fields import RoutingFields
from blade_router.policies.base import Choice, Policy
from blade_router.policies.load import expected_tokens
from blade_router.policies.placed import PlacedChoice
from blade_router.policies.source import PrefixSource
from blade_router.prompt_text import BLOCK, BYTES_PER_TOKEN
from blade_router.request import ClientRequest

logger = logging.getLogger("blade_router.policies")

QUIET = 60.0
"""Seconds between two complaints about the function."""


class EndpointView(NamedTuple):
    """What a cost function gets to know about an endpoint."""

    name: str
    url: str
    revision: str
    in_flight: int
    """Requests of this router on it."""
    running: int
    waiting: int
    """Requests it has by its own report."""
    tokens_in_flight: int
    backlog_tokens: int
    """Prompt tokens it has yet to compute for this router."""
    kv_usage: float | None
    adapters: frozenset[str]
    weight: float
    cached_tokens: int
    """Tokens of this request's prompt it probably has cached."""


class RequestView(NamedTuple):
    """What a cost function gets to know about a request."""

    path: str
    headers: Sequence[tuple[bytes, bytes]]
    fields: RoutingFields
    prompt_tokens: int
    """By its size."""


Cost = Callable[[EndpointView, RequestView], float]


def find_cost(name: str) -> Cost:
    """The function ``MODULE:FUNCTION``.

    Raises:
        ValueError: there is none; says what is missing.
    """
    module, _, function = name.partition(":")
    if not module or not function:
        raise ValueError(f"it needs --cost MODULE:FUNCTION, not {name!r}")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{name!r} cannot be imported: {error}; is its folder on PYTHONPATH?") from None
    except Exception as error:  # whatever a stranger's module does when it is run
        raise ValueError(f"{name!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise ValueError(f"{name!r} is not a function")
    return found  # type: ignore[no-any-return]


class External(Policy):
    """Args:

    cost: the lowest wins; ties go to the first.
    otherwise: decides when ``cost`` fails.
    """

    name = "external"

    def __init__(self, cost: Cost, source: PrefixSource, otherwise: Policy) -> None:
        self._cost = cost
        self._source = source
        self._otherwise = otherwise
        self._quiet_until = 0.0

    def choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        prompt = request.prompt
        matched = self._source.match(prompt.chain, candidates)
        try:
            costs = self._costs(candidates, matched, request)
        except Exception as error:  # whatever a stranger's code may raise
            self._complain(error)
            choice = self._otherwise.choose(candidates, request)
            choice.reason = f"{self.name} failed {choice.reason}"
            return choice
        place = costs.index(min(costs))
        held = matched[place]
        return PlacedChoice(
            candidates[place],
            f"{self.name} cost={costs[place]:.4g} prefix={held}/{len(prompt.chain)}",
            self._source,
            prompt.chain,
            held,
            (len(prompt.text) - held * BLOCK) // BYTES_PER_TOKEN,
            expected_tokens(request),
        )

    def _costs(self, candidates: Sequence[Endpoint], matched: Sequence[int], request: ClientRequest) -> list[float]:
        about = RequestView(request.path, request.headers, request.fields, request.prompt.tokens)
        costs = [
            float(self._cost(_view(endpoint, held), about)) for endpoint, held in zip(candidates, matched, strict=True)
        ]
        if any(math.isnan(cost) for cost in costs):
            raise ValueError("it answered nan")
        return costs

    def _complain(self, error: Exception) -> None:
        now = time.monotonic()
        if now >= self._quiet_until:
            self._quiet_until = now + QUIET
            logger.error("the cost function failed, auto decides meanwhile: %s: %s", type(error).__name__, error)

    def scores(self, candidates: Sequence[Endpoint], request: ClientRequest) -> dict[str, dict[str, float]]:
        matched = self._source.match(request.prompt.chain, candidates)
        try:
            costs = self._costs(candidates, matched, request)
        except Exception:  # as above
            return self._otherwise.scores(candidates, request)
        return {endpoint.name: {"cost": cost} for endpoint, cost in zip(candidates, costs, strict=True)}

    def rehearsal(self) -> Policy:
        twin = copy.copy(self)
        twin._otherwise = self._otherwise.rehearsal()
        return twin

    def removed(self, endpoint: Endpoint) -> None:
        self._otherwise.removed(endpoint)


def _view(endpoint: Endpoint, held: int) -> EndpointView:
    return EndpointView(
        name=endpoint.name,
        url=endpoint.url,
        revision=endpoint.revision,
        in_flight=endpoint.in_flight,
        running=endpoint.running,
        waiting=endpoint.waiting,
        tokens_in_flight=endpoint.tokens_in_flight,
        backlog_tokens=endpoint.backlog_tokens,
        kv_usage=endpoint.kv_usage,
        adapters=endpoint.adapters,
        weight=endpoint.weight,
        cached_tokens=held * BLOCK // BYTES_PER_TOKEN,
    )
