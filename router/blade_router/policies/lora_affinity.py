"""LoRA affinity: like ``auto``, but endpoints that have the adapter loaded are preferred instead of required.

``auto`` sends a request for an adapter only to where it is loaded. Here an endpoint without it may get the request
too, for engines that load adapters on demand. Its score is divided by a factor: adapter loaded 1, loading (the last
request that had to go elsewhere went there) 0.8, room for another adapter 0.6. An endpoint without room has factor 0
and gets the request only when nothing else is left.
"""

from collections.abc import Sequence

from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies.auto import Auto
from blade_router.policies.base import Choice, Policy
from blade_router.policies.options import PolicyOptions
from blade_router.policies.prefix_cache.interface import PrefixCacheIndex
from blade_router.request.request import ClientRequest

LOADED, LOADING, ROOM, FULL = 1.0, 0.8, 0.6, 0.0
MAX_LOADING = 1024
"""Adapters whose last loading is remembered."""


class LoraAffinity(Auto):
    def __init__(self, index: PrefixCacheIndex, options: PolicyOptions) -> None:
        super().__init__(index, options, name="lora-affinity")
        self._loading: dict[str, Endpoint] = {}

    def choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        model = request.fields.model or ""
        factors = self._factors(candidates, model)
        if not any(factors):
            return super().choose(candidates, request)
        kept = [(endpoint, factor) for endpoint, factor in zip(candidates, factors, strict=True) if factor]
        left = [endpoint for endpoint, _ in kept]
        prompt = request.prompt
        matched = self._index.match(prompt.chain, left)
        scores = self._costs(left, matched, request)
        scores = [score / factor for score, (_, factor) in zip(scores, kept, strict=True)]
        choice = self._select(left, matched, scores, request)
        if model not in choice.endpoint.report.adapters:
            self._remember(model, choice.endpoint)
        choice.reason += f" adapter={kept[left.index(choice.endpoint)][1]:g}"
        return choice

    def adapter(self, request: ClientRequest) -> str | None:
        return None

    def _factors(self, candidates: Sequence[Endpoint], model: str) -> list[float]:
        """The factor of each candidate; all 0 when none has the adapter, for then it may be no adapter."""
        if not any(model in endpoint.report.adapters for endpoint in candidates):
            return [FULL] * len(candidates)
        most = max(len(endpoint.report.adapters) for endpoint in candidates)
        factors = []
        for endpoint in candidates:
            if model in endpoint.report.adapters:
                factors.append(LOADED)
            elif self._loading.get(model) is endpoint:
                factors.append(LOADING)
            else:
                factors.append(ROOM if len(endpoint.report.adapters) < most else FULL)
        return factors

    def _remember(self, model: str, endpoint: Endpoint) -> None:
        self._loading.pop(model, None)
        self._loading[model] = endpoint
        if len(self._loading) > MAX_LOADING:
            del self._loading[next(iter(self._loading))]

    def scores(self, candidates: Sequence[Endpoint], request: ClientRequest) -> dict[str, dict[str, float]]:
        found = super().scores(candidates, request)
        for endpoint, factor in zip(candidates, self._factors(candidates, request.fields.model or ""), strict=True):
            found[endpoint.name]["adapter"] = factor
        return found

    def dry_run_copy(self) -> Policy:
        return _DryRun(self)

    def removed(self, endpoint: Endpoint) -> None:
        super().removed(endpoint)
        self._loading = {model: each for model, each in self._loading.items() if each is not endpoint}


class _DryRun(Policy):
    """Chooses as the policy would, and has it forget the adapter that this would load."""

    def __init__(self, policy: LoraAffinity) -> None:
        self.name = policy.name
        self._policy = policy

    def choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        loading = dict(self._policy._loading)
        try:
            return self._policy.choose(candidates, request)
        finally:
            self._policy._loading = loading

    def adapter(self, request: ClientRequest) -> str | None:
        return self._policy.adapter(request)

    def scores(self, candidates: Sequence[Endpoint], request: ClientRequest) -> dict[str, dict[str, float]]:
        return self._policy.scores(candidates, request)
