"""KV events: what was stored in and removed from the prefix cache since the last read, for routers that send a prompt
where its prefix is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from blade_protocol.state import KV_DIGEST_BYTES


class KVChanges(NamedTuple):
    """Digests, cut to ``KV_DIGEST_BYTES`` and one after another, of what can be found now and could not before, and
    of what cannot be found any more."""

    stored: bytes
    removed: bytes
    lost: bool
    """There were more than fit: start from all digests there are."""


class KVEvents:
    """Each digest's last change: a block that came and went between two reads is reported as removed, which does
    no harm.

    Args:
        capacity: digests after which changes are lost; bounds the memory that a subscriber who does not read costs.
    """

    def __init__(self, capacity: int = 65_536) -> None:
        self._changes: dict[bytes, bool] = {}
        self._capacity = capacity
        self._lost = False

    @property
    def pending(self) -> bool:
        """There is something to drain."""
        return self._lost or bool(self._changes)

    def stored(self, digest: bytes) -> None:
        """A block can be found from now on."""
        self._record(digest, True)

    def removed(self, digest: bytes) -> None:
        """A block cannot be found any more."""
        self._record(digest, False)

    def drain(self) -> KVChanges:
        """The changes since the last call."""
        changes, lost = self._changes, self._lost
        self._changes, self._lost = {}, False
        stored = cut(digest for digest, there in changes.items() if there)
        removed = cut(digest for digest, there in changes.items() if not there)
        return KVChanges(stored, removed, lost)

    def _record(self, digest: bytes, there: bool) -> None:
        changes = self._changes
        changes[digest] = there
        if len(changes) > self._capacity:
            changes.clear()
            self._lost = True


def cut(digests: Iterable[bytes]) -> bytes:
    """Digests as they travel: the beginning of each, one after another."""
    return b"".join([digest[:KV_DIGEST_BYTES] for digest in digests])
