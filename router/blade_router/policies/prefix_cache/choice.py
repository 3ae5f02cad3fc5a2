"""Choices that are recorded in a prefix-cache index, and that count their endpoint's prefill backlog."""

from collections.abc import Callable, Sequence

from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies.base import Choice
from blade_router.policies.fleet_times import FleetTimes
from blade_router.policies.prefix_cache.interface import Chain, PrefixCacheIndex, PrefixInsertion
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


class TimedChoice(PrefixChoice):
    """A choice from which its endpoint's ``PrefillClock`` learns. Its creator sets the fields below."""

    __slots__ = ("_reference", "_sent_at", "_waits", "blocks", "candidates", "clock", "times", "whole")

    clock: Callable[[], float]
    blocks: float
    """Uncached blocks of the prompt."""
    whole: bool
    """Its response comes in one piece."""
    times: FleetTimes
    candidates: Sequence[Endpoint]

    def sent(self) -> None:
        prefill = self.endpoint.prefill
        self._sent_at = now = self.clock()
        self._reference = prefill.sent(now, self.blocks, self.whole)
        self._waits = True
        self.times.record(prefill, self.blocks, self.candidates)
        super().sent()

    def first_byte(self) -> None:
        self._waits = False
        self.endpoint.prefill.first_byte(self.clock(), self._reference, self.blocks, self._matched, self.whole)
        super().first_byte()

    def ended(self, usage: Usage | None) -> None:
        if self._waits:
            self.endpoint.prefill.failed(self.blocks, self.whole)
        else:
            self.endpoint.prefill.ended(self.clock() - self._sent_at)
        super().ended(usage)
