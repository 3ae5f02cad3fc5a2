"""What this router's siblings have yet to learn of its requests: begun, first byte, ended. Sent in batches."""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from blade_router.request.usage import Usage

MAX_EVENTS: Final = 4096
"""Events of one batch; the oldest are dropped."""


class SentEvent(NamedTuple):
    """A request was sent. Times are seconds of the own clock, ``blocks`` those that are not expected in the cache."""

    number: int
    at: float
    endpoint: str
    blocks: float
    cached: int
    whole: bool
    chain: Sequence[int]


class FirstByteEvent(NamedTuple):
    number: int
    at: float


class EndedEvent(NamedTuple):
    """A request is over.

    ``seconds`` is the time it took in all, ``decoding`` that after its first byte; 0: the client's speed decided it.
    """

    number: int
    at: float
    seconds: float
    decoding: float
    usage: Usage | None


Event = SentEvent | FirstByteEvent | EndedEvent


class SyncLog:
    """Collects events while there is a sibling to send them to."""

    __slots__ = ("_number", "active", "dropped", "events", "synced")

    def __init__(self) -> None:
        self.active = False
        self.events: deque[Event] = deque()
        self.dropped = 0
        """Events that reached no sibling."""
        self.synced = 0
        """Siblings whose events arrive."""
        self._number = 0

    def sent(self, at: float, endpoint: str, blocks: float, cached: int, whole: bool, chain: Sequence[int]) -> int:
        """A request was sent; returns the number of it, never 0."""
        self._number += 1
        self._add(SentEvent(self._number, at, endpoint, blocks, cached, whole, chain))
        return self._number

    def first_byte(self, number: int, at: float) -> None:
        self._add(FirstByteEvent(number, at))

    def ended(self, number: int, at: float, seconds: float, decoding: float, usage: Usage | None) -> None:
        self._add(EndedEvent(number, at, seconds, decoding, usage))

    def take(self) -> list[Event]:
        """The events since the last call."""
        events = list(self.events)
        self.events.clear()
        return events

    def _add(self, event: Event) -> None:
        if not self.active:
            return
        if len(self.events) >= MAX_EVENTS:
            self.events.popleft()
            self.dropped += 1
        self.events.append(event)
