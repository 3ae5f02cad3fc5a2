"""What a policy is, and what it answers with."""

import copy
from collections.abc import Sequence

from blade_router.endpoints import Endpoint
from blade_router.request import ClientRequest
from blade_router.usage import Usage


class Choice:
    """One request placed on one endpoint. The proxy tells it how the request goes on, once each.

    ``sent`` comes first (the request is on its way), then perhaps ``first_byte``, then ``ended``. A policy that learns
    from what happened answers with a subclass.
    """

    __slots__ = ("endpoint", "reason")

    def __init__(self, endpoint: Endpoint, reason: str) -> None:
        self.endpoint = endpoint
        self.reason = reason
        """What ``x-blade-route-reason`` shows: ASCII, one line."""

    def sent(self) -> None:
        self.endpoint.in_flight += 1

    def first_byte(self) -> None:
        pass

    def ended(self, usage: Usage | None) -> None:
        """It is over, however that came; with what was used, where the engine said it."""
        self.endpoint.in_flight -= 1


class TokenChoice(Choice):
    """A choice that also counts the tokens its request may take."""

    __slots__ = ("tokens",)

    def __init__(self, endpoint: Endpoint, reason: str, tokens: int) -> None:
        super().__init__(endpoint, reason)
        self.tokens = tokens

    def sent(self) -> None:
        self.endpoint.in_flight += 1
        self.endpoint.tokens_in_flight += self.tokens

    def ended(self, usage: Usage | None) -> None:
        self.endpoint.in_flight -= 1
        self.endpoint.tokens_in_flight -= self.tokens


class Policy:
    """Chooses an endpoint. ``name`` is what ``x-blade-route-reason`` begins with."""

    name: str

    def choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        """One of ``candidates``, which is never empty."""
        raise NotImplementedError

    def adapter(self, request: ClientRequest) -> str | None:
        """What ``EndpointSet.candidates`` gets as ``adapter``; None: any endpoint will do, it loads what it lacks."""
        return request.fields.model

    def scores(self, candidates: Sequence[Endpoint], request: ClientRequest) -> dict[str, dict[str, float]]:
        """What speaks for each candidate, by its name, for ``/debug/route``; changes nothing."""
        return {endpoint.name: {"in_flight": float(endpoint.in_flight)} for endpoint in candidates}

    def rehearsal(self) -> "Policy":
        """A copy for ``/debug/route``: it chooses as this one would, and what it chooses changes nothing here."""
        return copy.copy(self)

    def removed(self, endpoint: Endpoint) -> None:
        """This endpoint will not come back: forget it. What the policy was made with is told by who made it."""
