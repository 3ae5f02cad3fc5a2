"""The KV cache as the scheduler sees it: find a cached prefix, allocate blocks, register what was computed, release."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from blade_llm.cache.blocks import BlockPool
from blade_llm.cache.events import KVChanges, KVEvents, cut
from blade_llm.cache.prefix_cache import HashChain, root_digest
from blade_llm.spec.vision.images import ImageSpan


class PrefixMatch(NamedTuple):
    """The cached prefix of a sequence, and the blocks that admitting it takes."""

    cached: list[int]
    """Blocks that already hold its beginning."""
    num_fresh: int
    """Blocks to compute for the rest."""
    num_needed: int
    """Free blocks that admission consumes: the fresh ones, and the cached ones that nobody holds now."""


class KVCacheManager:
    """Paged KV blocks with a prefix cache. Knows token ids and block indices, not requests."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        *,
        enable_prefix_cache: bool = True,
    ) -> None:
        self.block_size = block_size
        self.enable_prefix_cache = enable_prefix_cache
        self.pool = BlockPool(num_blocks)

    @property
    def num_blocks(self) -> int:
        return self.pool.num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now, those that the prefix cache still serves included."""
        return self.pool.num_free

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold ``num_tokens`` tokens."""
        return -(-num_tokens // self.block_size)

    def new_chain(self, salt: str = "", adapter: bytes = b"", images: Sequence[ImageSpan] = ()) -> HashChain:
        """An empty hash chain for a new sequence; ``adapter`` is a content digest, empty for none, ``images`` are those
        of its prompt."""
        return HashChain(root_digest(adapter=adapter, salt=salt), self.block_size, images)

    def cacheable_blocks(self, num_tokens: int, most: int | None = None) -> int:
        """The most blocks of ``num_tokens`` that :meth:`match` takes from the cache."""
        if not self.enable_prefix_cache:
            return 0
        return min(num_tokens - 1, num_tokens if most is None else most) // self.block_size

    def match(self, chain: HashChain, token_ids: list[int], most: int | None = None) -> PrefixMatch:
        """Find the cached prefix of a sequence. Never all of it: the last token is always computed, for its logits.

        ``most``: at most so many tokens come from the cache; the logits of the others are needed.
        """
        cached: list[int] = []
        if self.enable_prefix_cache:
            limit = self.cacheable_blocks(len(token_ids), most)
            chain.extend(token_ids, limit)
            for digest in chain.digests[:limit]:
                block = self.pool.find(digest)
                if block is None:
                    break
                cached.append(block)
        num_fresh = self.blocks_for(len(token_ids)) - len(cached)
        resting = sum(self.pool.ref_count(block) == 0 for block in cached)
        return PrefixMatch(cached, num_fresh, num_fresh + resting)

    def allocate(self, match: PrefixMatch) -> list[int]:
        """Allocate the blocks of a match made since the last change, as a new block table.

        Raises:
            ValueError: fewer than ``match.num_needed`` blocks are free (nothing is allocated then).
        """
        if match.num_needed > self.num_free:
            raise ValueError(f"{match.num_needed} KV blocks needed, {self.num_free} free")
        for block in match.cached:  # before allocating fresh ones, which may evict
            self.pool.share(block)
        fresh = [self.pool.allocate() for _ in range(match.num_fresh)]
        return match.cached + [block for block in fresh if block is not None]

    def share(self, blocks: list[int]) -> None:
        """Hold once more blocks that another sequence holds (copy-on-write: nobody writes to them any more)."""
        for block in blocks:
            self.pool.share(block)

    def is_writable(self, block: int) -> bool:
        """Whether it is held once, and not for what is in it: then its holder may write there."""
        return self.pool.ref_count(block) == 1 and self.pool.digest(block) is None

    def allocate_block(self) -> int | None:
        """Allocate one more block; None when none is free."""
        return self.pool.allocate()

    def register(self, chain: HashChain, token_ids: list[int], block_table: list[int], first: int, end: int) -> None:
        """Blocks ``first .. end - 1`` of a table are full and computed: others may use them from now on."""
        if not self.enable_prefix_cache:
            return
        chain.extend(token_ids, end)
        for index in range(first, end):
            self.pool.register(block_table[index], chain.digests[index])

    def forget(self, block_table: list[int]) -> None:
        """What is in these blocks, which a sequence holds, is not found again: it is wrong."""
        for block in block_table:
            self.pool.forget(block)

    def clear(self) -> None:
        """Forget what is in blocks that nobody holds: no prefix is found there again."""
        self.pool.clear()

    def subscribe(self) -> bytes:
        """The digests of all blocks that can be found now (as :class:`KVChanges` has them).

        From the first call on changes are recorded for :meth:`changes`; a cache without a subscriber records none.
        """
        if self.pool.events is None:
            self.pool.events = KVEvents()
        return cut(self.pool.cached_digests())

    @property
    def has_changes(self) -> bool:
        """Whether a subscriber has changes to read."""
        return self.pool.events is not None and self.pool.events.pending

    def changes(self) -> KVChanges | None:
        """The changes since the last call; None without any."""
        events = self.pool.events
        return events.drain() if events is not None and events.pending else None

    def release(self, block_table: list[int]) -> None:
        """Release a sequence's blocks; its beginning stays cached longest, as it is the likeliest to be shared."""
        self.pool.release(reversed(block_table))
