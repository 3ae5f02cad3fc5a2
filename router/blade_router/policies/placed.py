"""Choices that are recorded where prompts are looked up, and that count what their endpoint still has to compute."""

from blade_router.endpoints import Endpoint
from blade_router.policies.balance import Balance
from blade_router.policies.base import Choice
from blade_router.policies.source import Chain, Placement, PrefixSource
from blade_router.usage import Usage


class PlacedChoice(Choice):
    """A prompt of which its endpoint is thought to hold ``matched`` blocks.

    Args:
        uncached: prompt tokens the endpoint has to compute for it.
        tokens: what the request may take, prompt and answer, where the policy counts that.
    """

    __slots__ = ("_chain", "_matched", "_placement", "_source", "_tokens", "_uncached")

    # Made for each request: arguments by position and no call of the parent's constructor save a microsecond.

    def __init__(
        self,
        endpoint: Endpoint,
        reason: str,
        source: PrefixSource,
        chain: Chain,
        matched: int,
        uncached: int,
        tokens: int = 0,
    ) -> None:
        self.endpoint = endpoint
        self.reason = reason
        self._source = source
        self._chain = chain
        self._matched = matched
        self._tokens = tokens
        self._uncached = uncached
        self._placement: Placement | None = None

    def sent(self) -> None:
        endpoint = self.endpoint
        endpoint.in_flight += 1
        endpoint.tokens_in_flight += self._tokens
        endpoint.backlog_tokens += self._uncached
        self._placement = self._source.sent(self._chain, endpoint, self._matched)

    def first_byte(self) -> None:
        self.endpoint.backlog_tokens -= self._uncached
        self._uncached = 0
        if self._placement is not None:
            self._placement.first_byte()

    def ended(self, usage: Usage | None) -> None:
        endpoint = self.endpoint
        endpoint.in_flight -= 1
        endpoint.tokens_in_flight -= self._tokens
        endpoint.backlog_tokens -= self._uncached
        self._uncached = 0
        if self._placement is not None:
            self._placement.ended(usage)


class CountedChoice(PlacedChoice):
    """One that enters the recent history. Whoever makes it sets the fields it adds."""

    __slots__ = ("balance", "blocks", "moved", "size")

    balance: Balance
    blocks: float
    """The size of the prompt."""
    size: float
    """The share of requests its endpoint is due, 1 for a usual one."""
    moved: bool
    """It goes where it goes only for the sake of balance."""

    def sent(self) -> None:
        cold = 1.0 - self._matched / self.blocks if self.blocks else 1.0
        self.balance.count(self.endpoint, self.size, self.blocks, cold, self.moved)
        super().sent()
