"""What siblings have sent, fed into the same index and the same times as this router's own requests.

A sibling may die, lag, restart or lie: what is open of one is bounded, and forgotten when it falls silent or messages
of it are lost.
"""

from collections.abc import Callable, Sequence
from typing import Final

from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies.fleet_times import FleetTimes
from blade_router.policies.prefix_cache.interface import PrefixCacheIndex, PrefixInsertion
from blade_router.policies.replica_sync import messages
from blade_router.policies.sync_log import SyncLog

SILENT_SECONDS: Final = 1.0
"""Seconds without a message after which a sibling counts as gone, and its share is guessed again."""
MAX_OPEN: Final = 4096
"""Requests of a sibling that are followed at a time."""
MAX_BATCHES: Final = 100
"""Batches of a sibling that are read in a second; it sends 33."""
MAX_SIBLINGS: Final = 256
LEAST_OUTPUT: Final = 8
"""Output tokens from which on a response says how long one takes."""


class OpenRequest:
    """A request of a sibling that has not ended."""

    __slots__ = ("blocks", "cached", "endpoint", "insertion", "reference", "waits", "whole")

    def __init__(
        self,
        endpoint: Endpoint,
        insertion: PrefixInsertion | None,
        reference: float,
        blocks: float,
        cached: int,
        whole: bool,
    ) -> None:
        self.endpoint = endpoint
        self.insertion = insertion
        self.reference = reference
        self.blocks = blocks
        self.cached = cached
        self.whole = whole
        self.waits = True


class Sibling:
    """Another process that sends to the same engines."""

    __slots__ = ("batches", "heard_at", "open", "second", "sequence")

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.heard_at = 0.0
        self.second = 0.0
        """When the counting of batches began ..."""
        self.batches = 0
        """... and how many there were."""
        self.open: dict[int, OpenRequest] = {}

    def in_rate(self, now: float) -> bool:
        """One more batch may be read."""
        if now - self.second >= 1.0:
            self.second, self.batches = now, 0
        self.batches += 1
        return self.batches <= MAX_BATCHES


class Siblings:
    """All of them.

    Args:
        log: of this process's own events.
        endpoints: all endpoints there are.
        clock: seconds, as policies have it.
    """

    def __init__(self, log: SyncLog, endpoints: Callable[[], Sequence[Endpoint]], clock: Callable[[], float]) -> None:
        self.log = log
        self.received = 0
        """Events."""
        self.ignored = 0
        """Events of unknown endpoints or requests, or beyond a bound."""
        self._endpoints = endpoints
        self._clock = clock
        self._index: PrefixCacheIndex | None = None
        self._times: FleetTimes | None = None
        self._siblings: dict[str, Sibling] = {}

    def attach(self, index: PrefixCacheIndex, times: FleetTimes) -> None:
        """A policy was made that learns from siblings' requests by these."""
        for sender in list(self._siblings):
            self._forget(sender)
        self._index, self._times = index, times
        times.log = self.log

    def apply(self, batch: messages.Batch) -> None:
        """Take over a batch; one that came already changes nothing."""
        now = self._clock()
        sibling = self._siblings.get(batch.sender)
        if sibling is not None and batch.sequence <= sibling.sequence:
            return
        if sibling is None:
            if len(self._siblings) >= MAX_SIBLINGS:
                self.ignored += len(batch.events)
                return
            sibling = self._siblings[batch.sender] = Sibling(batch.sequence)
        elif batch.sequence != sibling.sequence + 1:
            _release(sibling)  # what ended meanwhile is not known
        if not sibling.in_rate(now):
            self.ignored += len(batch.events)  # the next one that is read sees a gap
            return
        sibling.sequence, sibling.heard_at = batch.sequence, now
        self.log.synced = len(self._siblings)
        if self._index is not None and self._times is not None:
            self._apply(batch, sibling, self._index, self._times, now)

    def expire(self) -> None:
        """Forget siblings that have fallen silent."""
        oldest = self._clock() - SILENT_SECONDS
        for sender in [sender for sender, each in self._siblings.items() if each.heard_at < oldest]:
            self._forget(sender)

    def _apply(
        self, batch: messages.Batch, sibling: Sibling, index: PrefixCacheIndex, times: FleetTimes, now: float
    ) -> None:
        endpoints = {endpoint.name: endpoint for endpoint in self._endpoints()}
        services: dict[str, list[Endpoint]] = {}
        for endpoint in endpoints.values():
            services.setdefault(endpoint.config.service, []).append(endpoint)
        alike = batch.salt == messages.SALT
        for event in batch.events:
            self.received += 1
            if isinstance(event, messages.Sent):
                target = endpoints.get(event.endpoint)
                if target is None or event.number in sibling.open or len(sibling.open) >= MAX_OPEN:
                    self.ignored += 1
                    continue
                insertion = None
                if alike and event.chain:
                    chain = messages.unpack_chain(event.chain)
                    insertion = index.sent(chain, target, index.match(chain, (target,))[0])
                reference = target.prefill.sent(now - event.age, event.blocks, event.whole)
                times.record(target.prefill, event.blocks, services[target.config.service])
                sibling.open[event.number] = OpenRequest(
                    target, insertion, reference, event.blocks, event.cached, event.whole
                )
            elif isinstance(event, messages.FirstByte):
                begun = sibling.open.get(event.number)
                if begun is None or not begun.waits:
                    self.ignored += 1
                    continue
                begun.waits = False
                begun.endpoint.prefill.first_byte_elsewhere(
                    now - event.age, begun.reference, begun.blocks, begun.cached, begun.whole
                )
                if begun.insertion is not None:
                    begun.insertion.first_byte()
            else:
                ended = sibling.open.pop(event.number, None)
                if ended is None:
                    self.ignored += 1
                    continue
                self._ended(ended, event, times)

    def _ended(self, request: OpenRequest, event: messages.Ended, times: FleetTimes) -> None:
        usage = messages.unpack_usage(event.tokens)
        prefill = request.endpoint.prefill
        if request.waits:
            prefill.failed(request.blocks, request.whole)
        elif event.seconds:
            prefill.ended(event.seconds)
            if event.decoding and usage is not None and usage.completion_tokens >= LEAST_OUTPUT and not request.whole:
                prefill.decoded(event.decoding, usage.completion_tokens)
                times.decoded(prefill.token, usage.completion_tokens)
        if request.insertion is not None:
            request.insertion.ended(usage)

    def _forget(self, sender: str) -> None:
        sibling = self._siblings.pop(sender, None)
        self.log.synced = len(self._siblings)
        if sibling is not None:
            _release(sibling)


def _release(sibling: Sibling) -> None:
    """What is open of it waits no longer; what is known to have been computed stays in the index."""
    for request in sibling.open.values():
        if request.waits:
            request.endpoint.prefill.failed(request.blocks, request.whole)
        if request.insertion is not None:
            request.insertion.ended(None)
    sibling.open.clear()
