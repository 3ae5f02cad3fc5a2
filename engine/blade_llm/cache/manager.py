"""The KV cache as the scheduler sees it: find a cached prefix, take blocks, name what was computed, let go."""

from __future__ import annotations

from typing import NamedTuple

from blade_llm.cache.blocks import BlockPool
from blade_llm.cache.events import KVChanges, KVEvents, cut
from blade_llm.cache.prompt_cache import HashChain, root_digest


class PrefixMatch(NamedTuple):
    """What a sequence needs to enter the cache."""

    cached: list[int]
    """Blocks that already hold its beginning."""
    num_fresh: int
    """Blocks to compute for the rest."""
    num_needed: int
    """Free blocks that entering consumes: the fresh ones, and the cached ones that nobody holds now."""


class KVCacheManager:
    """Paged KV blocks with a prompt cache. Knows token ids and block indices, not requests."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        *,
        enable_prompt_cache: bool = True,
    ) -> None:
        self.block_size = block_size
        self.enable_prompt_cache = enable_prompt_cache
        self.pool = BlockPool(num_blocks)

    @property
    def num_blocks(self) -> int:
        return self.pool.num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that can be taken now, those that still hold reusable prompt cache included."""
        return self.pool.num_free

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold ``num_tokens`` tokens."""
        return -(-num_tokens // self.block_size)

    def new_chain(self, salt: str = "", adapter: bytes = b"", image: bytes = b"") -> HashChain:
        """An empty hash chain for a new sequence; ``adapter`` and ``image`` are content digests, empty for none."""
        return HashChain(root_digest(adapter=adapter, image=image, salt=salt), self.block_size)

    def match(self, chain: HashChain, token_ids: list[int], most: int | None = None) -> PrefixMatch:
        """How much of a sequence is cached. Never all of it: the last token is always computed, for its logits.

        ``most``: whoever needs more of the logits takes no more than so many tokens from the cache.
        """
        cached: list[int] = []
        if self.enable_prompt_cache:
            limit = min(len(token_ids) - 1, len(token_ids) if most is None else most) // self.block_size
            chain.extend(token_ids, limit)
            for digest in chain.digests[:limit]:
                block = self.pool.find(digest)
                if block is None:
                    break
                cached.append(block)
        num_fresh = self.blocks_for(len(token_ids)) - len(cached)
        resting = sum(self.pool.ref_count(block) == 0 for block in cached)
        return PrefixMatch(cached, num_fresh, num_fresh + resting)

    def enter(self, match: PrefixMatch) -> list[int]:
        """Take the blocks of a match made since the last change, as a new block table.

        Raises:
            ValueError: fewer than ``match.num_needed`` blocks are free (nothing is taken then).
        """
        if match.num_needed > self.num_free:
            raise ValueError(f"{match.num_needed} KV blocks needed, {self.num_free} free")
        for block in match.cached:  # before taking fresh ones, which may evict
            self.pool.share(block)
        fresh = [self.pool.take() for _ in range(match.num_fresh)]
        return match.cached + [block for block in fresh if block is not None]

    def share(self, blocks: list[int]) -> None:
        """Hold blocks that someone else holds once more."""
        for block in blocks:
            self.pool.share(block)

    def is_blank(self, block: int) -> bool:
        """Whether it is held once, and not for what is in it: then its holder may write there."""
        return self.pool.ref_count(block) == 1 and self.pool.digest(block) is None

    def take(self) -> int | None:
        """One more block, or None when none is free."""
        return self.pool.take()

    def register(self, chain: HashChain, token_ids: list[int], block_table: list[int], first: int, end: int) -> None:
        """Blocks ``first .. end - 1`` of a table are full and computed: others may use them from now on."""
        if not self.enable_prompt_cache:
            return
        chain.extend(token_ids, end)
        for index in range(first, end):
            self.pool.register(block_table[index], chain.digests[index])

    def follow(self) -> bytes:
        """The digests of all blocks that can be found now (as :class:`KVChanges` has them).

        From the first call on changes are kept for :meth:`changes`; a cache that nobody follows keeps none.
        """
        if self.pool.events is None:
            self.pool.events = KVEvents()
        return cut(self.pool.cached_digests())

    @property
    def changed(self) -> bool:
        """Someone follows, and there are changes."""
        return self.pool.events is not None and self.pool.events.pending

    def changes(self) -> KVChanges | None:
        """What changed since the last call; None without anything new."""
        events = self.pool.events
        return events.drain() if events is not None and events.pending else None

    def release(self, block_table: list[int]) -> None:
        """Let go of a sequence's blocks; its beginning stays cached longest, as it is the likeliest to be shared."""
        self.pool.release(reversed(block_table))
