"""How to choose one endpoint of several.

A policy sees only endpoints that may be chosen and the parsed part of the request; it keeps what state it needs and
does no I/O, because it runs once per request on the hot path.
"""

from blade_protocol.routing import PolicyName
from blade_router.policies.base import Choice, Policy
from blade_router.policies.least_request import LeastRequest
from blade_router.policies.round_robin import RoundRobin


def make_policy(name: PolicyName) -> Policy:
    """The policy of that name. ``auto`` is the best general choice there is: today least-request."""
    return RoundRobin() if name == "round-robin" else LeastRequest()


__all__ = ["Choice", "LeastRequest", "Policy", "RoundRobin", "make_policy"]
