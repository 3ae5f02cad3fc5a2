"""Choices that are recorded in a prefix-cache index, and that count their endpoint's prefill backlog."""

from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies.base import Choice
from blade_router.policies.prefix_cache.interface import Chain, PrefixCacheIndex, PrefixInsertion
from blade_router.policies.request_history import RequestHistory
from blade_router.request.usage import Usage


class PrefixChoice(Choice):
    """A prompt of which its endpoint is expected to have ``matched`` blocks cached.

    Args:
        uncached: prompt tokens the endpoint has to compute for it.
        tokens: tokens the request may take, prompt and output, where the policy counts that.
    """

    __slots__ = ("_chain", "_index", "_insertion", "_matched", "_tokens", "_uncached")

    # Created for each request: positional arguments and no call of the parent's constructor save a microsecond.

    def __init__(
        self,
        endpoint: Endpoint,
        reason: str,
        index: PrefixCacheIndex,
        chain: Chain,
        matched: int,
        uncached: int,
        tokens: int = 0,
    ) -> None:
        self.endpoint = endpoint
        self.reason = reason
        self._index = index
        self._chain = chain
        self._matched = matched
        self._tokens = tokens
        self._uncached = uncached
        self._insertion: PrefixInsertion | None = None

    def sent(self) -> None:
        endpoint = self.endpoint
        endpoint.tokens_in_flight += self._tokens
        endpoint.backlog_tokens += self._uncached
        self._insertion = self._index.sent(self._chain, endpoint, self._matched)

    def first_byte(self) -> None:
        self.endpoint.backlog_tokens -= self._uncached
        self._uncached = 0
        if self._insertion is not None:
            self._insertion.first_byte()

    def ended(self, usage: Usage | None) -> None:
        endpoint = self.endpoint
        endpoint.tokens_in_flight -= self._tokens
        endpoint.backlog_tokens -= self._uncached
        self._uncached = 0
        if self._insertion is not None:
            self._insertion.ended(usage)


class TrackedChoice(PrefixChoice):
    """A choice that is counted in the request history. Its creator sets the fields below."""

    __slots__ = ("blocks", "history", "moved", "size")

    history: RequestHistory
    blocks: float
    """The size of the prompt."""
    size: float
    """The share of requests its endpoint is due, 1 for a usual one."""
    moved: bool
    """It was chosen for balance only."""

    def sent(self) -> None:
        cold = 1.0 - self._matched / self.blocks if self.blocks else 1.0
        self.history.record(self.endpoint, self.size, cold, self.moved)
        super().sent()

    def first_byte(self) -> None:
        self.history.served(self.blocks)
        super().first_byte()
