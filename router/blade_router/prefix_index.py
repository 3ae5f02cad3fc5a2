"""What each engine's prompt cache probably holds, judged by what was sent to it: the approximate index.

One dictionary maps a block's hash to a bit mask of the endpoints thought to hold it, so that a lookup costs the same
for two endpoints and for two hundred. Each endpoint has its own LRU order, as each engine has; ``max_bytes`` bounds
them together. What is sent is recorded at once, so the second request of a burst finds the first one's endpoint.

How much an engine really keeps is learned from its answers' ``cached_tokens``: fewer than predicted shrinks what we
believe of it, more lets it grow.
"""

from collections import OrderedDict
from collections.abc import Sequence

from blade_router.endpoints import Endpoint
from blade_router.policies.source import Chain, Placement
from blade_router.prompt_text import BLOCK, BYTES_PER_TOKEN
from blade_router.usage import Usage

DEFAULT_BYTES = 64 << 20
BYTES_PER_ENTRY = 400
"""Memory of one block at one endpoint, both dictionaries at their worst load; a test measures it."""
SWEEP = 64
"""Blocks of an endpoint that is gone, or has too much, that one request clears away on top of its own."""
JUST_NOW = 64
"""What was used while one part in this many of a cache was computed counts as the most recent already."""
STEP = 64
"""A belief about an engine's capacity changes by one part in this many at a time: better too much than too little,
for a prompt that went to its old home in vain is at home again, and one that was scattered is nowhere."""


class Cache:
    """What we believe one endpoint's prompt cache holds."""

    __slots__ = ("blocks", "capacity", "clock", "computing", "mask")

    def __init__(self, mask: int, capacity: int) -> None:
        self.mask = mask
        self.blocks: OrderedDict[int, int] = OrderedDict()
        """From the least to the most recently used; of a prompt its end counts as the older. With the clock then."""
        self.capacity = capacity
        """Blocks, as far as is known."""
        self.clock = 0
        """Counts blocks the engine had to compute: the measure of age."""
        self.computing: dict[Recorded, None] = {}
        """Requests it has not begun to answer, oldest first: their blocks may not be there yet."""


class Recorded(Placement):
    """One request in the index."""

    __slots__ = ("age", "cache", "chain", "index", "matched", "stamp")

    def __init__(self, index: "PrefixIndex", cache: Cache, chain: Chain, matched: int) -> None:
        self.index = index
        self.cache = cache
        self.chain = chain
        self.matched = matched
        self.stamp: int
        self.age = -1
        """Blocks computed since what it matches was last used; -1: that may not even be computed yet."""
        if matched:
            used = cache.blocks[chain[matched - 1]]
            oldest = next(iter(cache.computing), None)
            if oldest is None or used < oldest.stamp:
                self.age = cache.clock - used
        cache.clock += len(chain) - matched
        self.stamp = cache.clock
        cache.computing[self] = None

    def first_byte(self) -> None:
        self.cache.computing.pop(self, None)

    def ended(self, usage: Usage | None) -> None:
        if self in self.cache.computing:
            del self.cache.computing[self]
            self.index.drop(self.cache, self.chain, self.matched)
        elif usage is not None and usage.cached_tokens is not None and usage.prompt_tokens > 0:
            self.index.correct(self, len(self.chain) * usage.cached_tokens / usage.prompt_tokens)


class PrefixIndex:
    """A ``PrefixSource`` of fixed size."""

    def __init__(self, max_bytes: int = DEFAULT_BYTES) -> None:
        self._limit = max(1, max_bytes // BYTES_PER_ENTRY)
        self._holders: dict[int, int] = {}
        self._caches: dict[Endpoint, Cache] = {}
        self._masks: dict[Endpoint, int] = {}
        self._gone: list[Cache] = []
        """Caches of endpoints that were removed, on their way out."""
        self._free_bits: list[int] = []
        self._size = 0

    def __len__(self) -> int:
        """Blocks, counted once for each endpoint."""
        return self._size

    def match(self, chain: Chain, endpoints: Sequence[Endpoint]) -> list[int]:
        """How many blocks from the start of ``chain`` each endpoint holds. Changes nothing."""
        mask_of = self._masks.get
        masks = [mask_of(endpoint, 0) for endpoint in endpoints]
        alive = sum(masks)
        held_by = self._holders.get
        depth, size = 0, len(chain)
        left: list[tuple[int, int]] = []
        while alive and depth < size:
            if held_by(chain[-1], 0) & alive == alive:
                depth = size
                break
            # Whoever holds a block holds those before it: the first one that somebody lacks is found by halving.
            end = size - 1
            while depth < end:
                middle = (depth + end) >> 1
                if held_by(chain[middle], 0) & alive == alive:
                    depth = middle + 1
                else:
                    end = middle
            still = alive & held_by(chain[depth], 0)
            left.append((alive ^ still, depth))
            alive = still
            depth += 1
        if not left or left[-1][1] == 0:  # each holds nothing of it or as much as the others that hold some
            return [depth if mask & alive else 0 for mask in masks]
        lengths = dict.fromkeys(masks, depth)
        lengths[0] = 0
        for lost, depth in left:
            while lost:
                mask = lost & -lost
                lengths[mask] = depth
                lost ^= mask
        return [lengths[mask] for mask in masks]

    def sent(self, chain: Chain, endpoint: Endpoint, matched: int) -> Recorded:
        """Record that the endpoint is about to hold all of ``chain``, of which it held ``matched`` blocks."""
        cache = self._caches.get(endpoint) or self._add(endpoint)
        if endpoint.cache_tokens:  # the engine says how much fits
            cache.capacity = min(cache.capacity, endpoint.cache_tokens * BYTES_PER_TOKEN // BLOCK)
        recorded = Recorded(self, cache, chain, matched)
        stamp, mask, blocks, holders = recorded.stamp, cache.mask, cache.blocks, self._holders
        before = len(blocks)
        fresh = chain[matched:] if matched else chain
        touch = blocks.move_to_end
        for block in reversed(fresh):
            blocks[block] = stamp
            touch(block)
            holders[block] = holders.get(block, 0) | mask
        if matched and stamp - blocks[chain[matched - 1]] >= before // JUST_NOW:
            for block in reversed(chain[:matched]):
                if block in blocks:
                    blocks[block] = stamp
                    touch(block)
        new = len(blocks) - before
        if new or self._gone:
            self._size += new
            self._make_room(cache, new)
        return recorded

    def removed(self, endpoint: Endpoint) -> None:
        """Forget the endpoint: it matches nothing from now on, and later requests clear its blocks away bit by bit."""
        cache = self._caches.pop(endpoint, None)
        if cache is not None:
            del self._masks[endpoint]
            self._gone.append(cache)

    # the two below are for ``Recorded``

    def drop(self, cache: Cache, chain: Chain, start: int) -> None:
        """This cache does not hold what comes from block ``start`` on.

        What longer prompts have behind the end of this one stays until it is evicted, and may be taken for held.
        """
        blocks = cache.blocks
        for block in chain[start:]:
            if blocks.pop(block, None) is not None:
                self._clear(block, cache.mask)

    def correct(self, recorded: Recorded, actual: float) -> None:
        """Learn from an answer how many blocks of a prompt had really been there.

        A prompt last used long ago that is not there was evicted, so the cache is smaller than we think and older
        ones are gone as well; this one is there again. One used just now that is not there is one the engine cannot
        reuse (it keeps no cache, or its template changes what came before): forget its end.
        """
        cache, chain, age = recorded.cache, recorded.chain, recorded.age
        held = len(cache.blocks)
        slack = 1 + len(chain) // 8
        missing = recorded.matched - actual
        cache.clock += max(0, int(missing))
        if missing < -slack or (missing <= slack and 2 * age >= held):
            cache.capacity = min(self._limit, cache.capacity + cache.capacity // STEP + 1)
        elif missing > slack and age >= 0:
            if 2 * age < held:
                self.drop(cache, chain, int(actual))
            else:
                cache.capacity = max(len(chain), held - held // STEP - 1)
                self._evict(cache, min(held - cache.capacity, SWEEP))

    def _add(self, endpoint: Endpoint) -> Cache:
        bit = self._free_bits.pop() if self._free_bits else len(self._caches) + len(self._gone)
        cache = self._caches[endpoint] = Cache(1 << bit, self._limit)
        self._masks[endpoint] = cache.mask
        return cache

    def _make_room(self, cache: Cache, new: int) -> None:
        """Keep the cache within its capacity and its share of the memory, and all together within the limit."""
        if self._gone:
            last = self._gone[-1]
            self._evict(last, min(len(last.blocks), SWEEP + new))
            if not last.blocks:
                self._gone.pop()
                self._free_bits.append(last.mask.bit_length() - 1)
        over = len(cache.blocks) - min(cache.capacity, self._limit // max(1, len(self._caches)))
        if over > 0:
            self._evict(cache, min(over, SWEEP + new))
        while self._size > self._limit:
            largest = max((*self._caches.values(), *self._gone), key=lambda each: len(each.blocks))
            self._evict(largest, min(len(largest.blocks), self._size - self._limit))

    def _evict(self, cache: Cache, count: int) -> None:
        oldest = cache.blocks.popitem
        for _ in range(count):
            self._clear(oldest(last=False)[0], cache.mask)

    def _clear(self, block: int, mask: int) -> None:
        self._size -= 1
        left = self._holders[block] & ~mask
        if left:
            self._holders[block] = left
        else:
            del self._holders[block]
