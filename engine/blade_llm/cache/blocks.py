"""The block pool: KV blocks, their reference counts and the free list.

A block is an index into the runner's KV tensors. It is *held* (reference count > 0: in the block table of one or more
requests) or *free*. A free block may still carry the digest of what was computed into it: those, oldest release first,
are the prefix cache's LRU. Allocation takes blocks without a digest first, and then evicts the oldest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from blade_llm.cache.events import KVEvents


class BlockPool:
    """Reference counts, digests and the free list of ``num_blocks`` blocks. Every operation is O(1) a block."""

    def __init__(self, num_blocks: int, events: KVEvents | None = None) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, got {num_blocks}")
        self.num_blocks = num_blocks
        self._ref_counts = [0] * num_blocks
        self._digests: list[bytes | None] = [None] * num_blocks
        self._by_digest: dict[bytes, int] = {}
        self._empty = list(range(num_blocks - 1, -1, -1))
        """Free blocks without a digest."""
        self._evictable: OrderedDict[int, None] = OrderedDict()
        """Free blocks with a digest, least recently released first."""
        self.events = events
        """Records what enters and leaves the prefix cache; None: nobody subscribed."""

    @property
    def num_free(self) -> int:
        """Blocks nobody holds, those that the prefix cache still serves included."""
        return len(self._empty) + len(self._evictable)

    def ref_count(self, block: int) -> int:
        """The number of block tables that contain ``block``."""
        return self._ref_counts[block]

    def digest(self, block: int) -> bytes | None:
        """The digest of the block's contents, or None."""
        return self._digests[block]

    def find(self, digest: bytes) -> int | None:
        """The block, held or free, whose contents have this digest."""
        return self._by_digest.get(digest)

    def cached_digests(self) -> Iterator[bytes]:
        """All digests that can be found now: the snapshot that a subscriber to the events starts from."""
        return iter(self._by_digest)

    def allocate(self) -> int | None:
        """Hold a free block whose contents do not matter; None when all are held."""
        if self._empty:
            block = self._empty.pop()
        elif self._evictable:
            block, _ = self._evictable.popitem(last=False)
            self._evict(block)
        else:
            return None
        self._ref_counts[block] = 1
        return block

    def share(self, block: int) -> None:
        """Hold a block for its contents, whether or not someone else holds it."""
        if self._ref_counts[block] == 0:
            del self._evictable[block]
        self._ref_counts[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Release each block once. Blocks named first are evicted first: name the tail of a sequence before its head.

        Raises:
            ValueError: a block is not held.
        """
        for block in blocks:
            count = self._ref_counts[block] - 1
            if count < 0:
                raise ValueError(f"block {block} is released more often than it was allocated")
            self._ref_counts[block] = count
            if count == 0:
                if self._digests[block] is None:
                    self._empty.append(block)
                else:
                    self._evictable[block] = None

    def register(self, block: int, digest: bytes) -> None:
        """Make a held, fully computed block findable. If another block has the digest, that one stays the one found."""
        if digest in self._by_digest:
            return
        self._digests[block] = digest
        self._by_digest[digest] = block
        if self.events is not None:
            self.events.stored(digest)

    def forget(self, block: int) -> None:
        """Make a held block one whose contents do not matter."""
        if self._digests[block] is not None:
            self._evict(block)

    def clear(self) -> None:
        """Make all free blocks ones without a digest."""
        while self._evictable:
            block, _ = self._evictable.popitem(last=False)
            self._evict(block)
            self._empty.append(block)

    def _evict(self, block: int) -> None:
        digest = self._digests[block]
        assert digest is not None
        self._digests[block] = None
        del self._by_digest[digest]
        if self.events is not None:
            self.events.removed(digest)
