"""What tests of policies choose with: endpoints without engines, a policy with a seed, and requests."""

import random
from collections.abc import Sequence
from typing import Any

from blade_protocol.routing import EndpointConfig, PolicyName
from blade_router.endpoints import Endpoint, EndpointSet
from blade_router.fields import RoutingFields
from blade_router.policies import Policy, PolicyOptions, make_policy
from blade_router.prefix_index import PrefixIndex
from blade_router.request import ClientRequest
from router_support.simulation import chat_request, group_text

REQUEST = ClientRequest("POST", "/v1/completions", RoutingFields(), b"", b"id")
LONG = chat_request(group_text(1, 16))
OTHER = chat_request(group_text(2, 16))


def endpoints(count: int, revisions: Sequence[str] = ("",)) -> list[Endpoint]:
    found = EndpointSet()
    found.update(
        EndpointConfig(url=f"http://10.0.0.{at}:80", name=str(at), revision=revisions[at % len(revisions)])
        for at in range(count)
    )
    return found.all


def policy(name: PolicyName, canary: dict[str, float] | None = None, **options: Any) -> Policy:
    return make_policy(name, PolicyOptions(**{"index": PrefixIndex(), "rng": random.Random(1), **options}), canary)


def serve(policy: Policy, candidates: Sequence[Endpoint], request: ClientRequest) -> str:
    """One request from beginning to end; who had it."""
    choice = policy.choose(candidates, request)
    choice.sent()
    choice.first_byte()
    choice.ended(None)
    return choice.endpoint.name


def with_session(session: str) -> ClientRequest:
    return ClientRequest("POST", "/", RoutingFields(), b"", b"id", headers=[(b"x-session-id", session.encode())])
