"""Fixtures of policy tests: endpoints without engines, a policy with a seed, and requests."""

import random
from collections.abc import Sequence
from typing import Any

from blade_protocol.routing import EndpointConfig, PolicyName
from blade_router.endpoints.endpoint import Endpoint
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.policies import Choice, Policy, PolicyOptions, make_policy
from blade_router.policies.prefix_cache.prefix_index import PrefixIndex
from blade_router.request.fields import RoutingFields
from blade_router.request.request import ClientRequest
from blade_router.request.usage import Usage
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


def send(choice: Choice) -> Choice:
    """Count a choice as an attempt does that sends its request."""
    choice.endpoint.in_flight += 1
    choice.sent()
    return choice


def end(choice: Choice, usage: Usage | None = None) -> None:
    """The same of an attempt that ends."""
    choice.endpoint.in_flight -= 1
    choice.ended(usage)


def serve(policy: Policy, candidates: Sequence[Endpoint], request: ClientRequest) -> str:
    """Serve one request from beginning to end; returns the chosen endpoint."""
    choice = send(policy.choose(candidates, request))
    choice.first_byte()
    end(choice)
    return choice.endpoint.name


def with_session(session: str) -> ClientRequest:
    return ClientRequest("POST", "/", RoutingFields(), b"", b"id", headers=[(b"x-session-id", session.encode())])
