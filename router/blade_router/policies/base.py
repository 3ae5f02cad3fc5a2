"""The interface of policies, and the choice they return."""

from collections.abc import Sequence

from blade_router.compiled.attributes import mypyc_attr
from blade_router.endpoints.endpoint import Endpoint
from blade_router.request.request import ClientRequest
from blade_router.request.usage import Usage


@mypyc_attr(allow_interpreted_subclasses=True)
class Choice:
    """One request assigned to one endpoint. The proxy reports the request's progress to it, each step once.

    ``sent`` comes first (the request is on its way), then perhaps ``first_byte``, then ``ended``. A policy that learns
    from the outcome returns a subclass.
    """

    __slots__ = ("_reason", "endpoint")

    def __init__(self, endpoint: Endpoint, reason: str) -> None:
        self.endpoint = endpoint
        self._reason = reason

    @property
    def reason(self) -> str:
        """The value of ``x-blade-route-reason``: ASCII, one line."""
        if not self._reason:
            self._reason = self.describe()
        return self._reason

    @reason.setter
    def reason(self, reason: str) -> None:
        self._reason = reason

    @property
    def word(self) -> bytes:
        """The first word of the reason."""
        return self.reason.partition(" ")[0].encode("ascii")

    def describe(self) -> str:
        """The reason, where it is put into words only when somebody reads it."""
        return ""

    def sent(self) -> None:
        pass

    def first_byte(self) -> None:
        """The engine serves the request: its response has begun, and is no error and no redirect."""

    def kept_waiting(self) -> None:
        """The client read its response slowly. Called before ``ended``, at most once."""

    def ended(self, usage: Usage | None) -> None:
        """The request is over, served or not; ``usage`` is what the engine reported, if it did."""


class TokenChoice(Choice):
    """A choice that also counts the tokens its request may take."""

    __slots__ = ("tokens",)

    def __init__(self, endpoint: Endpoint, reason: str, tokens: int) -> None:
        super().__init__(endpoint, reason)
        self.tokens = tokens

    def sent(self) -> None:
        self.endpoint.tokens_in_flight += self.tokens

    def ended(self, usage: Usage | None) -> None:
        self.endpoint.tokens_in_flight -= self.tokens


@mypyc_attr(allow_interpreted_subclasses=True)
class Policy:
    """A load-balancing policy. ``name`` is the first word of ``x-blade-route-reason``."""

    name: str
    sticky: bool = False
    """Requests go where others of theirs went, though they have to wait there."""

    def choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        """Choose one of ``candidates``, which is never empty."""
        raise NotImplementedError

    def adapter(self, request: ClientRequest) -> str | None:
        """The ``adapter`` for ``EndpointSet.candidates``; None: any endpoint will do, it loads what it lacks."""
        return request.fields.model

    def scores(self, candidates: Sequence[Endpoint], request: ClientRequest) -> dict[str, dict[str, float]]:
        """The scores of each candidate, by its name, for ``/debug/route``; changes nothing."""
        return {endpoint.name: {"in_flight": float(endpoint.in_flight)} for endpoint in candidates}

    def dry_run_copy(self) -> "Policy":
        """A policy for ``/debug/route``: it chooses as this one would, and leaves no trace in it.

        That is this one itself, where choosing sets none of its attributes.
        """
        return self

    def removed(self, endpoint: Endpoint) -> None:
        """Forget an endpoint that will not come back. Whoever made the policy reports it to its ``PolicyOptions``."""
