"""A record of which blocks entered and left the prompt cache, for routers that send a prompt where its prefix is."""

from __future__ import annotations

from collections import deque
from typing import Literal, NamedTuple


class KVEvent(NamedTuple):
    """One block became findable (``stored``) or was evicted (``removed``)."""

    kind: Literal["stored", "removed"]
    digest: bytes
    parent: bytes = b""
    """Digest of the block before it in the sequence (the chain's root for a first block); only of stored ones."""


class KVEvents:
    """A bounded buffer: when the reader is too slow the oldest events are lost, and it is told so."""

    def __init__(self, capacity: int = 65_536) -> None:
        self._buffer: deque[KVEvent] = deque(maxlen=capacity)
        self._lost = False

    def stored(self, digest: bytes, parent: bytes) -> None:
        """A block can be found from now on."""
        self._append(KVEvent("stored", digest, parent))

    def removed(self, digest: bytes) -> None:
        """A block cannot be found any more."""
        self._append(KVEvent("removed", digest))

    def drain(self) -> tuple[list[KVEvent], bool]:
        """The events since the last call, and whether some before them were lost (then start from a snapshot)."""
        events, lost = list(self._buffer), self._lost
        self._buffer.clear()
        self._lost = False
        return events, lost

    def _append(self, event: KVEvent) -> None:
        self._lost = self._lost or len(self._buffer) == self._buffer.maxlen
        self._buffer.append(event)
