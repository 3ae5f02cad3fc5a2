"""Load-balancing policies: how to choose one endpoint of several.

A policy sees only endpoints that may be chosen and the parsed part of the request; it keeps what state it needs and
does no I/O, because it runs once per request on the hot path.
"""

from collections.abc import Callable, Mapping

from blade_protocol.routing import PolicyName
from blade_router.policies.auto import Auto
from blade_router.policies.base import Choice, Policy
from blade_router.policies.canary import Canary
from blade_router.policies.external import External, load_cost_function
from blade_router.policies.hashing.consistent_hash import ConsistentHash
from blade_router.policies.hashing.session import Session
from blade_router.policies.load_balancing.least_request import LeastRequest
from blade_router.policies.load_balancing.least_token import LeastToken
from blade_router.policies.load_balancing.power_of_two import PowerOfTwo
from blade_router.policies.load_balancing.random_pick import RandomPick
from blade_router.policies.load_balancing.round_robin import RoundRobin
from blade_router.policies.lora_affinity import LoraAffinity
from blade_router.policies.options import PolicyOptions
from blade_router.policies.prefix import Prefix

_MAKE: Mapping[PolicyName, Callable[[PolicyOptions], Policy]] = {
    "auto": lambda options: Auto(options.index, options),
    "round-robin": lambda options: RoundRobin(),
    "random": lambda options: RandomPick(options.rng),
    "power-of-two": lambda options: PowerOfTwo(options.rng),
    "least-request": lambda options: LeastRequest(),
    "least-token": lambda options: LeastToken(),
    "prefix": lambda options: Prefix(options.index),
    "kv-aware": lambda options: Auto(options.exact or options.index, options, name="kv-aware"),
    "lora-affinity": lambda options: LoraAffinity(options.index, options),
    "session": lambda options: Session(Auto(options.index, options)),
    "consistent-hash": lambda options: ConsistentHash(),
    "external": lambda options: External(load_cost_function(options.cost), options.index, Auto(options.index, options)),
}


def make_policy(name: PolicyName, options: PolicyOptions, canary: Mapping[str, float] | None = None) -> Policy:
    """Create the policy of that name, behind a ``Canary`` where revisions have weights.

    Raises:
        ValueError: ``external`` without a cost function that can be imported.
    """
    policy = _MAKE[name](options)
    return Canary(policy, canary) if canary else policy


__all__ = ["Canary", "Choice", "LeastRequest", "Policy", "PolicyOptions", "RoundRobin", "make_policy"]
