"""Choices that are recorded in a prefix-cache index, and that count their endpoint's prefill backlog."""

from collections.abc import Callable, Sequence
from typing import Final

from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies.base import Choice
from blade_router.policies.fleet_times import FleetTimes
from blade_router.policies.prefix_cache.interface import Chain, PrefixCacheIndex, PrefixInsertion
from blade_router.request.usage import Usage

LEAST_OUTPUT: Final = 8
"""Output tokens from which on a response says how long one takes."""


class PrefixChoice(Choice):
    """A prompt of which its endpoint is expected to have ``matched`` blocks cached.

    Args:
        uncached: prompt tokens the endpoint has to compute for it.
        tokens: tokens the request may take, prompt and output, where the policy counts that.
    """

    __slots__ = ("_blocks_total", "_chain", "_index", "_insertion", "_matched", "_tokens", "_uncached")

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
        self._reason = reason
        self._index = index
        self._chain = chain
        self._matched = matched
        self._tokens = tokens
        self._uncached = uncached
        self._insertion: PrefixInsertion | None = None
        self._blocks_total = 0

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
            self._insertion = None
        # Whoever keeps a record of the request keeps its choice, and that no prompt's hashes.
        self._blocks_total = len(self._chain)
        self._chain = ()


class TimedChoice(PrefixChoice):
    """A choice from which its endpoint's ``PrefillClock`` learns.

    Args:
        policy: the name of the policy that chose.
        blocks: uncached blocks of the prompt.
        cost: the expected cost of this endpoint in seconds.
        home: it is the prompt's home.
        whole: its response comes in one piece.
        now: when it was chosen, by ``clock``.
    """

    __slots__ = (
        "_blocks",
        "_candidates",
        "_clock",
        "_cost",
        "_first_at",
        "_home",
        "_in_flight",
        "_kept_waiting",
        "_number",
        "_policy",
        "_reference",
        "_sent_at",
        "_times",
        "_waits",
        "_whole",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        policy: str,
        index: PrefixCacheIndex,
        chain: Chain,
        matched: int,
        uncached: int,
        blocks: float,
        cost: float,
        home: bool,
        whole: bool,
        now: float,
        clock: Callable[[], float],
        times: FleetTimes,
        candidates: Sequence[Endpoint],
    ) -> None:
        self.endpoint = endpoint
        self._reason = ""
        self._index = index
        self._chain = chain
        self._matched = matched
        self._tokens = 0
        self._uncached = uncached
        self._insertion = None
        self._blocks_total = 0
        self._policy = policy
        self._in_flight = endpoint.in_flight
        self._blocks = blocks
        self._cost = cost
        self._home = home
        self._whole = whole
        self._sent_at = now
        self._reference = 0.0
        self._first_at = 0.0
        self._kept_waiting = False
        self._waits = False
        self._number = 0
        self._clock = clock
        self._times = times
        self._candidates = candidates

    @property
    def word(self) -> bytes:
        return self._reason.partition(" ")[0].encode("ascii") if self._reason else self._policy.encode("ascii")

    def describe(self) -> str:
        home = " home" if self._home else ""
        blocks = self._blocks_total or len(self._chain)
        return (
            f"{self._policy} prefix={self._matched}/{blocks} in_flight={self._in_flight} "
            f"ms={self._cost * 1e3:.1f}{home}"
        )

    def sent(self) -> None:
        # It is sent at once, so it was chosen now; and the counts of `PrefixChoice` are written out, as every request
        # passes here.
        endpoint = self.endpoint
        prefill = endpoint.prefill
        self._reference = prefill.sent(self._sent_at, self._blocks, self._whole)
        self._waits = True
        self._times.record(prefill, self._blocks, self._candidates)
        endpoint.backlog_tokens += self._uncached
        self._insertion = self._index.sent(self._chain, endpoint, self._matched)
        log = self._times.log
        if log is not None and log.active:
            self._number = log.sent(self._sent_at, endpoint.name, self._blocks, self._matched, self._whole, self._chain)

    def first_byte(self) -> None:
        self._waits = False
        self._first_at = now = self._clock()
        endpoint = self.endpoint
        endpoint.prefill.first_byte(now, self._reference, self._blocks, self._matched, self._whole)
        endpoint.backlog_tokens -= self._uncached
        self._uncached = 0
        if self._insertion is not None:
            self._insertion.first_byte()
        if self._number and (log := self._times.log) is not None:
            log.first_byte(self._number, now)

    def kept_waiting(self) -> None:
        self._kept_waiting = True

    def ended(self, usage: Usage | None) -> None:
        if self._waits:
            self.endpoint.prefill.failed(self._blocks, self._whole)
        elif not self._kept_waiting:  # else the time says how fast the client is
            now, prefill = self._clock(), self.endpoint.prefill
            prefill.ended(now - self._sent_at)
            if usage is not None and usage.completion_tokens >= LEAST_OUTPUT and not self._whole:
                prefill.decoded(now - self._first_at, usage.completion_tokens)
                self._times.decoded(prefill.token, usage.completion_tokens)
        if self._number and (log := self._times.log) is not None:
            now = self._clock()
            seconds = decoding = 0.0
            if not self._kept_waiting:
                seconds = now - self._sent_at
                if not self._waits:
                    decoding = now - self._first_at
            log.ended(self._number, now, seconds, decoding, usage)
        super().ended(usage)
        self._candidates = ()  # nor does whoever keeps the choice keep engines that have left since
