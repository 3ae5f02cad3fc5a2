"""The policies that are compared, by name."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from benchmarks.routing.peers.cache_aware import CacheAware
from benchmarks.routing.peers.llm_d import LlmD
from benchmarks.routing.peers.lmetric import Lmetric
from benchmarks.routing.peers.oracle import Oracle
from benchmarks.routing.peers.prefix_aware import PrefixAware
from benchmarks.routing.simulation import Fleet
from blade_protocol.routing import PolicyName
from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies import LeastRequest, Policy, PolicyOptions, RoundRobin, make_policy
from blade_router.policies.prefix_cache.interface import Chain, PrefixInsertion
from blade_router.policies.prefix_cache.prefix_index import PrefixIndex

Make = Callable[[Fleet, random.Random], Policy]

OURS = "auto"
ALONE = "auto, no sync"
ORACLE = "oracle"
_NOTHING = PrefixInsertion()


class EngineCaches:
    """An index that sees engines' caches, as KV events show them."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def match(self, chain: Chain, endpoints: Sequence[Endpoint]) -> list[int]:
        return [self._fleet.engines[self._fleet.place[endpoint]].hit(chain) for endpoint in endpoints]

    def sent(self, chain: Chain, endpoint: Endpoint, matched: int) -> PrefixInsertion:
        return _NOTHING

    def removed(self, endpoint: Endpoint) -> None: ...


def _ours(name: PolicyName, *, sync: bool = False) -> Make:
    def make(fleet: Fleet, rng: random.Random) -> Policy:
        exact = EngineCaches(fleet) if name == "kv-aware" else None
        options = PolicyOptions(
            index=PrefixIndex(),
            exact=exact,
            rng=rng,
            replicas=lambda: fleet.routers,
            clock=fleet.clock,
            siblings=fleet.sync() if sync else None,
        )
        return make_policy(name, options)

    return make


POLICIES: Mapping[str, Make] = {
    OURS: _ours("auto", sync=True),
    ALONE: _ours("auto"),
    "kv-aware": _ours("kv-aware"),
    "sglang": lambda fleet, rng: CacheAware(64, 1.5, 0.3),
    "smg": lambda fleet, rng: CacheAware(32, 1.1, 0.5),
    "llm-d": lambda fleet, rng: LlmD(fleet, rng),
    "prefix-aware": lambda fleet, rng: PrefixAware(rng),
    "lmetric": lambda fleet, rng: Lmetric(rng),
    "least-request": lambda fleet, rng: LeastRequest(),
    "round-robin": lambda fleet, rng: RoundRobin(),
    ORACLE: lambda fleet, rng: Oracle(fleet),
}
NOT_PEERS = (OURS, ALONE, "kv-aware", ORACLE)
PEERS = tuple(name for name in POLICIES if name not in NOT_PEERS)
