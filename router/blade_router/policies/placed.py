"""A choice that is recorded where prompts are looked up, and that counts what its endpoint still has to compute."""

from blade_router.endpoints import Endpoint
from blade_router.policies.base import TokenChoice
from blade_router.policies.source import Chain, Placement, PrefixSource
from blade_router.usage import Usage


class PlacedChoice(TokenChoice):
    """``uncached``: prompt tokens the endpoint has to compute for it."""

    __slots__ = ("_chain", "_matched", "_placement", "_source", "_uncached")

    def __init__(
        self,
        endpoint: Endpoint,
        reason: str,
        tokens: int,
        *,
        source: PrefixSource,
        chain: Chain,
        matched: int,
        uncached: int,
    ) -> None:
        super().__init__(endpoint, reason, tokens)
        self._source = source
        self._chain = chain
        self._matched = matched
        self._uncached = uncached
        self._placement: Placement | None = None

    def sent(self) -> None:
        super().sent()
        self.endpoint.backlog_tokens += self._uncached
        self._placement = self._source.sent(self._chain, self.endpoint, self._matched)

    def first_byte(self) -> None:
        self._computed()
        if self._placement is not None:
            self._placement.first_byte()

    def ended(self, usage: Usage | None) -> None:
        super().ended(usage)
        self._computed()
        if self._placement is not None:
            self._placement.ended(usage)

    def _computed(self) -> None:
        self.endpoint.backlog_tokens -= self._uncached
        self._uncached = 0
