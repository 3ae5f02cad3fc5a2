"""A canary of adapters: several of them answer to one model name, each for its share of the requests."""

from collections.abc import Iterable, Sequence

from blade_protocol.routing import AdapterConfig
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.policies.hashing.hash_ring import session_key
from blade_router.policies.weighted_split import WeightedSplit
from blade_router.request.request import ClientRequest


class AdapterSplit:
    """The adapters of one model name.

    Args:
        adapters: of one service, at least one with a weight above 0.
    """

    def __init__(self, adapters: Sequence[AdapterConfig], endpoints: EndpointSet) -> None:
        self.service = adapters[0].service
        self.weights = {adapter.name: adapter.weight for adapter in adapters}
        self._endpoints = endpoints
        self._split = WeightedSplit()

    def choose(self, request: ClientRequest, *, counted: bool = True) -> str:
        """The adapter for a request. Those that an engine has come before others; ``counted``: it gets one."""
        weights = {name: weight for name, weight in self.weights.items() if weight > 0}
        if len(weights) > 1:
            reports = [endpoint.report for endpoint in self._endpoints.of_service(self.service)]
            there = {name for name in weights if any(name in report.adapters for report in reports)}
            weights = {name: weight for name, weight in weights.items() if name in there} or weights
        total = sum(weights.values())
        split = self._split if counted else self._split.copy()
        return split.choose({name: weight / total for name, weight in weights.items()}, session_key(request))


def adapter_splits(adapters: Iterable[AdapterConfig], endpoints: EndpointSet) -> dict[str, AdapterSplit]:
    """Model name → its adapters, of the names that are not just an adapter's own."""
    groups: dict[str, list[AdapterConfig]] = {}
    for adapter in adapters:
        groups.setdefault(adapter.model or adapter.name, []).append(adapter)
    return {
        name: AdapterSplit(group, endpoints)
        for name, group in sorted(groups.items())
        if len(group) > 1 or group[0].name != name
    }
