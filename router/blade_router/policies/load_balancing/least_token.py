"""Least token: the endpoint with the fewest tokens in flight, prompts by size and outputs by their requests' limits.

Better than counting requests where some are a hundred times as long as others and prompts share nothing.
"""

from collections.abc import Sequence

from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies.base import Choice, Policy, TokenChoice
from blade_router.policies.load import MIN_WEIGHT, expected_tokens
from blade_router.request.request import ClientRequest


class LeastToken(Policy):
    name = "least-token"

    def __init__(self, turn: int = 0) -> None:
        self._turn = turn

    def dry_run_copy(self) -> Policy:
        return LeastToken(self._turn)

    def choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        tokens = expected_tokens(request)
        count = len(candidates)
        start = self._turn % count
        self._turn += 1
        best = candidates[start]
        load = _load(best, tokens)
        for offset in range(1, count):
            endpoint = candidates[(start + offset) % count]
            its = _load(endpoint, tokens)
            if its < load:
                best, load = endpoint, its
        return TokenChoice(best, f"least-token tokens={best.tokens_in_flight}", tokens)

    def scores(self, candidates: Sequence[Endpoint], request: ClientRequest) -> dict[str, dict[str, float]]:
        tokens = expected_tokens(request)
        return {
            endpoint.name: {
                "in_flight": float(endpoint.in_flight),
                "tokens_in_flight": float(endpoint.tokens_in_flight),
                "score": _load(endpoint, tokens),
            }
            for endpoint in candidates
        }


def _load(endpoint: Endpoint, tokens: int) -> float:
    return (endpoint.tokens_in_flight + tokens) / max(endpoint.health.weight, MIN_WEIGHT)
