"""The encoder cache as the scheduler sees it: which images have their embeddings on the device, and who needs them.

Bytes are bounded. An image that somebody holds stays; the others stay until their room is needed, those that were used
last the longest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class _Entry:
    nbytes: int
    holders: int = 0
    ready: bool = False


class EncoderCache:
    """Embeddings of images, by digest. Knows bytes and numbers of holders, not requests.

    Attributes:
        capacity: bytes.
        used: bytes of all entries, those that are still made included.
        freed: digests that left since the last step plan.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self.freed: list[bytes] = []
        self._entries: dict[bytes, _Entry] = {}
        """Those used last are the last."""

    def __contains__(self, digest: bytes) -> bool:
        """Whether an image is there, or on its way."""
        return digest in self._entries

    def is_ready(self, digest: bytes) -> bool:
        """Whether the embeddings of an image can be used."""
        entry = self._entries.get(digest)
        return entry is not None and entry.ready

    def reserve(self, digest: bytes, nbytes: int) -> bool:
        """Make room for an image whose embeddings are about to be made, evicting others; whether there was room.

        It is held until :meth:`finish` or :meth:`cancel`. Nothing changes where there is no room.
        """
        assert digest not in self._entries, "an image twice in the encoder cache"
        needed = self.used + nbytes - self.capacity
        evicted = []
        for other, entry in self._entries.items():
            if needed <= 0:
                break
            if not entry.holders:
                evicted.append(other)
                needed -= entry.nbytes
        if needed > 0:
            return False
        for each in evicted:
            self._remove(each)
        self._entries[digest] = _Entry(nbytes, holders=1)
        self.used += nbytes
        return True

    def finish(self, digests: Iterable[bytes]) -> None:
        """The embeddings of images that were reserved are made; who makes them holds them no more."""
        for digest in digests:
            self._entries[digest].ready = True
            self.release(digest)

    def cancel(self, digests: Iterable[bytes]) -> None:
        """The embeddings of images that were reserved are not made."""
        for digest in digests:
            self._remove(digest)

    def hold(self, digest: bytes) -> None:
        """Keep an image that is ready until :meth:`release`."""
        self._entries[digest].holders += 1

    def release(self, digest: bytes) -> None:
        """Undo one :meth:`hold`."""
        entry = self._entries.pop(digest)
        entry.holders -= 1
        self._entries[digest] = entry

    def take_freed(self) -> list[bytes]:
        """The digests that left since the last call."""
        freed, self.freed = self.freed, []
        return freed

    def _remove(self, digest: bytes) -> None:
        self.used -= self._entries.pop(digest).nbytes
        self.freed.append(digest)
