"""Publishes the engine's KV events to routers, from the API server's copy of which blocks the prefix cache has, so that
no step of the engine waits for a router.

The engine process only sends what changed; new, slow and lost subscribers are the API server's business.
"""

from __future__ import annotations

import contextlib
from array import array
from collections import deque
from collections.abc import Iterator
from typing import Final

from blade_protocol.state import KVBatch, KVSnapshot

_MAX_PENDING: Final = 64
"""Batches kept for a subscriber that does not read them; the oldest are dropped first, and the subscriber sees the
gap."""
_NUMBER: Final = "Q"
"""A digest as a number: eight bytes in this machine's order, here and back."""


class KVEventSubscriber:
    """The batches that one subscriber has not read yet."""

    def __init__(self, first: KVBatch) -> None:
        self._pending = deque((first,), _MAX_PENDING)

    def take(self) -> list[KVBatch]:
        """The batches since the last call, oldest first."""
        batches = list(self._pending)
        self._pending.clear()
        return batches

    def put(self, batch: KVBatch) -> None:
        self._pending.append(batch)


class KVEventPublisher:
    """The digests in the prefix cache, as of the batch ``sequence``, and the subscribers to its changes."""

    def __init__(self) -> None:
        self.sequence = 0
        self._digests: set[int] = set()
        self._subscribers: set[KVEventSubscriber] = set()

    def __len__(self) -> int:
        return len(self._digests)

    def apply(self, batch: KVBatch) -> None:
        """Apply the engine's changes to the copy, and publish them."""
        if batch.lost:
            self._digests = set()
        self._digests.update(_numbers(batch.stored))
        self._digests.difference_update(_numbers(batch.removed))
        self.sequence = batch.sequence
        event = KVBatch(sequence=batch.sequence, lost=True) if batch.lost else batch
        for subscriber in self._subscribers:
            subscriber.put(event)

    def snapshot(self, epoch: str) -> KVSnapshot:
        """All digests."""
        return KVSnapshot(epoch=epoch, sequence=self.sequence, digests=array(_NUMBER, self._digests).tobytes())

    @contextlib.contextmanager
    def subscribe(self) -> Iterator[KVEventSubscriber]:
        """Collect batches inside the ``with`` block, beginning with an empty one that says where the copy is."""
        subscriber = KVEventSubscriber(KVBatch(sequence=self.sequence))
        self._subscribers.add(subscriber)
        try:
            yield subscriber
        finally:
            self._subscribers.discard(subscriber)


def _numbers(digests: bytes) -> memoryview[int]:
    return memoryview(digests).cast(_NUMBER)
