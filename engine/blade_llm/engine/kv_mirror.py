"""The front's copy of which blocks the engine's prompt cache has: routers are told from here, and no step is late.

The engine process only says what changed; who comes, who is slow and who wants all of it is the front's business.
"""

from __future__ import annotations

import contextlib
from array import array
from collections import deque
from collections.abc import Iterator
from typing import Final

from blade_protocol.state import KVBatch, KVSnapshot

_MOST_WAITING: Final = 64
"""Batches kept for a reader that does not take them; the oldest go first, and the gap tells the reader."""
_NUMBER: Final = "Q"
"""A digest as a number: eight bytes in this machine's order, here and back."""


class KVReader:
    """The batches one reader has not taken yet."""

    def __init__(self, first: KVBatch) -> None:
        self._waiting = deque((first,), _MOST_WAITING)

    def take(self) -> list[KVBatch]:
        """The batches since the last call, oldest first."""
        batches = list(self._waiting)
        self._waiting.clear()
        return batches

    def put(self, batch: KVBatch) -> None:
        self._waiting.append(batch)


class KVMirror:
    """The digests in the prompt cache, as of the batch ``sequence``."""

    def __init__(self) -> None:
        self.sequence = 0
        self._digests: set[int] = set()
        self._readers: set[KVReader] = set()

    def __len__(self) -> int:
        return len(self._digests)

    def apply(self, batch: KVBatch) -> None:
        """Follow the engine, and pass on the news."""
        if batch.lost:
            self._digests = set()
        self._digests.update(_numbers(batch.stored))
        self._digests.difference_update(_numbers(batch.removed))
        self.sequence = batch.sequence
        told = KVBatch(sequence=batch.sequence, lost=True) if batch.lost else batch
        for reader in self._readers:
            reader.put(told)

    def snapshot(self, epoch: str) -> KVSnapshot:
        """All digests."""
        return KVSnapshot(epoch=epoch, sequence=self.sequence, digests=array(_NUMBER, self._digests).tobytes())

    @contextlib.contextmanager
    def follow(self) -> Iterator[KVReader]:
        """Collect batches inside the ``with`` block, beginning with an empty one that says where the copy is."""
        reader = KVReader(KVBatch(sequence=self.sequence))
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)


def _numbers(digests: bytes) -> memoryview[int]:
    return memoryview(digests).cast(_NUMBER)
