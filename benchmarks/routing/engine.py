"""A simulated engine: an LRU prefix cache, prompts computed first come, first served, and decodes beside them."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import islice

BLOCK_TOKENS = 64
"""Tokens of a block of 256 characters."""


class Engine:
    """One replica in virtual time.

    A prompt is computed when those before it are, so the order of arrival decides what is in the cache, and the times
    of a request are known on its arrival.

    Args:
        cache_blocks: blocks that the prefix cache holds.
        block_seconds: prefill of one block.
        decode_share: how much each running decode slows a prefill down (chunked prefill); 0: not at all.
        slots: requests that run at the same time; the others wait.
    """

    __slots__ = (
        "_decodes",
        "block_seconds",
        "blocks",
        "cache",
        "cache_blocks",
        "cached_total",
        "decode_share",
        "free_at",
        "held",
        "hits",
        "open",
        "prefills",
        "requests",
        "slots",
        "slowness",
    )

    def __init__(
        self,
        cache_blocks: int,
        block_seconds: float,
        *,
        decode_share: float = 0.0,
        slots: int = 256,
        slowness: float = 1.0,
    ) -> None:
        self.cache_blocks = cache_blocks
        self.block_seconds = block_seconds * slowness
        self.slowness = slowness
        self.decode_share = decode_share
        self.slots = slots
        self.cache: dict[int, None] = {}
        """Blocks, the least recently used first."""
        self.free_at = 0.0
        """When all prompts it has are computed."""
        self._decodes: list[float] = []
        """Ends of the requests that have been begun: a heap."""
        self.requests = self.hits = self.cached_total = 0
        self.blocks = 0.0
        self.open = self.prefills = 0
        """Requests that are not finished, and those of them without a first token."""
        self.held = 0.0
        """Blocks of requests that it has not finished."""

    def hit(self, chain: Sequence[int]) -> int:
        """Blocks of a prompt that are cached."""
        cache = self.cache
        if not chain or chain[0] not in cache:
            return 0
        low, high = 0, len(chain)  # a block is evicted before those it builds on
        while high - low > 1:
            middle = (low + high) >> 1
            if chain[middle] in cache:
                low = middle
            else:
                high = middle
        return high

    def serve(self, chain: Sequence[int], blocks: float, decode: float, now: float) -> tuple[int, float, float]:
        """Cached blocks, and the times of the first token and of the end."""
        hit = self.hit(chain)
        cache = self.cache
        for block in reversed(chain):
            if block in cache:
                del cache[block]
            cache[block] = None
        if len(cache) > self.cache_blocks:
            for block in list(islice(cache, len(cache) - self.cache_blocks)):
                del cache[block]
        self.requests += 1
        self.hits += hit
        self.blocks += blocks
        self.held += blocks
        start = max(now, self.free_at)
        decodes = self._decodes
        while decodes and decodes[0] <= start:
            heapq.heappop(decodes)
        if len(decodes) >= self.slots:
            start = max(start, heapq.heappop(decodes))
        work = (blocks - hit) * self.block_seconds
        first = start + work * (1.0 + self.decode_share * len(decodes))
        self.free_at = first
        end = first + decode * self.slowness
        heapq.heappush(decodes, end)
        return hit, first, end

    def restart(self) -> None:
        """What it had cached is gone."""
        self.cache.clear()
