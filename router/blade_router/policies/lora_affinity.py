"""Like ``auto``, with a preference instead of a rule for endpoints that have the adapter loaded.

``auto`` sends a request for an adapter only to where it is loaded. Here an endpoint without it may have the request
too, for engines that load adapters on demand. Its score is divided by what the step it stands on is worth: loaded 1,
loading (the last request that had to go elsewhere went there) 0.8, room for another one 0.6. One that is full stands on
0 and gets it only when nothing else is left.
"""

import copy
from collections.abc import Sequence

from blade_router.endpoints import Endpoint
from blade_router.policies.auto import Auto
from blade_router.policies.base import Choice, Policy
from blade_router.policies.options import PolicyOptions
from blade_router.policies.source import PrefixSource
from blade_router.request import ClientRequest

LOADED, LOADING, ROOM, FULL = 1.0, 0.8, 0.6, 0.0
REMEMBERED = 1024
"""Adapters whose last loading is remembered."""


class LoraAffinity(Auto):
    def __init__(self, source: PrefixSource, options: PolicyOptions) -> None:
        super().__init__(source, options, name="lora-affinity")
        self._loading: dict[str, Endpoint] = {}

    def choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        model = request.fields.model or ""
        steps = self._steps(candidates, model)
        if not any(steps):
            return super().choose(candidates, request)
        kept = [(endpoint, step) for endpoint, step in zip(candidates, steps, strict=True) if step]
        left = [endpoint for endpoint, _ in kept]
        prompt = request.prompt
        matched = self._source.match(prompt.chain, left)
        scores = self._score(left, matched, prompt.blocks)
        scores = [score / step for score, (_, step) in zip(scores, kept, strict=True)]
        choice = self._place(left, matched, scores, request)
        if model not in choice.endpoint.adapters:
            self._remember(model, choice.endpoint)
        choice.reason += f" adapter={kept[left.index(choice.endpoint)][1]:g}"
        return choice

    def adapter(self, request: ClientRequest) -> str | None:
        return None

    def _steps(self, candidates: Sequence[Endpoint], model: str) -> list[float]:
        """What each candidate's step is worth; all 0 when none has the adapter, for then it may be no adapter."""
        if not any(model in endpoint.adapters for endpoint in candidates):
            return [FULL] * len(candidates)
        most = max(len(endpoint.adapters) for endpoint in candidates)
        steps = []
        for endpoint in candidates:
            if model in endpoint.adapters:
                steps.append(LOADED)
            elif self._loading.get(model) is endpoint:
                steps.append(LOADING)
            else:
                steps.append(ROOM if len(endpoint.adapters) < most else FULL)
        return steps

    def _remember(self, model: str, endpoint: Endpoint) -> None:
        self._loading.pop(model, None)
        self._loading[model] = endpoint
        if len(self._loading) > REMEMBERED:
            del self._loading[next(iter(self._loading))]

    def scores(self, candidates: Sequence[Endpoint], request: ClientRequest) -> dict[str, dict[str, float]]:
        found = super().scores(candidates, request)
        for endpoint, step in zip(candidates, self._steps(candidates, request.fields.model or ""), strict=True):
            found[endpoint.name]["adapter"] = step
        return found

    def rehearsal(self) -> Policy:
        twin = copy.copy(self)
        twin._loading = dict(self._loading)
        return twin

    def removed(self, endpoint: Endpoint) -> None:
        super().removed(endpoint)
        self._loading = {model: each for model, each in self._loading.items() if each is not endpoint}
