"""The approximate prefix-cache index: what each engine probably has cached, judged by what was sent to it.

One dictionary maps a block's hash to a bit mask of the endpoints that probably have it, so a lookup costs the same
for two endpoints and for two hundred. Each endpoint has its own LRU order, as each engine has; ``max_bytes`` bounds
them together. A prompt is *pending* from when it is sent, so the second request of a burst finds the first one's
endpoint. It enters the LRU order, and evicts, when its response has begun: one that fails leaves nothing behind, or a
client whose requests are all refused could wipe out everybody's prefixes.

How much an engine really keeps is learned from the ``cached_tokens`` of its responses: fewer than predicted shrink the
estimate of its cache, more let it grow.
"""

from collections import OrderedDict
from collections.abc import Sequence

from blade_protocol.limits import PREFIX_INDEX_BYTES
from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies.prefix_cache.interface import Chain, PrefixInsertion
from blade_router.request.prompt_text import BLOCK, BYTES_PER_TOKEN, MAX_BLOCKS
from blade_router.request.usage import Usage

DEFAULT_BYTES = PREFIX_INDEX_BYTES
BYTES_PER_ENTRY = 400
"""Memory of one block at one endpoint, both dictionaries at their worst load; a test measures it."""
EVICTION_BATCH = 64
"""Blocks of a removed or overfull endpoint that one request evicts on top of its own."""
PENDING_FRACTION = 8
"""Pending prompts may take an eighth of the memory on top; what is beyond that is recorded when its response begins."""
RECENT_FRACTION = 64
"""A block used within the last 1/64 of a cache's blocks counts as most recently used already."""
CAPACITY_STEP = 64
"""An estimate of an engine's capacity changes by 1/64 at a time. Too high is better than too low: a prompt that went
to its old endpoint in vain is cached there again, and one that was scattered is cached nowhere."""

MOST_SHARE = 1.02
"""Share of a prompt's tokens from which on a report is impossible."""
DOUBTS = 64
"""Possible reports after an impossible one until they are believed."""
UNIT_MEMORY = 32
"""Reports over which the share that stands for a whole prompt is averaged, where it falls."""


class EngineCache:
    """The estimated content of one endpoint's prefix cache."""

    __slots__ = ("blocks", "capacity", "clock", "doubts", "mask", "pending", "removed", "unit")

    def __init__(self, mask: int, capacity: int) -> None:
        self.mask = mask
        self.blocks: OrderedDict[int, int] = OrderedDict()
        """Block → clock of its last use, in LRU order; a prompt's end counts as older than its start."""
        self.pending: dict[int, int] = {}
        """Block → the number of prompts without a response yet that bring it. It may not be computed yet."""
        self.capacity = capacity
        """Blocks, as far as is known."""
        self.clock = 0
        """Counts blocks the engine had to compute: the measure of age."""
        self.unit = 0.0
        """The share of a prompt's tokens that it reports as cached where all of it is: 1, or less where its tokens are
        not ours; 0 until it has reported any."""
        self.doubts = 0
        """Reports it takes until it is believed again, after impossible ones."""
        self.removed = False


class RecordedPrompt(PrefixInsertion):
    """One prompt recorded in the index."""

    __slots__ = ("age", "answered", "cache", "chain", "index", "matched", "pending")

    def __init__(
        self, index: "PrefixIndex", cache: EngineCache, chain: Chain, matched: int, age: int, pending: Chain
    ) -> None:
        self.index = index
        self.cache = cache
        self.chain = chain
        self.matched = matched
        self.age = age
        """Blocks computed since the matched prefix was last used; -1: it may not be computed yet."""
        self.pending = pending
        """Its blocks that are pending."""
        self.answered = False

    def first_byte(self) -> None:
        self.answered = True
        self.index.insert(self)

    def ended(self, usage: Usage | None) -> None:
        if not self.answered:
            self.index.abandon(self)
        elif len(self.chain) >= MAX_BLOCKS:
            pass  # the chain is only the start of the prompt: what share of it was cached is not known
        elif usage is not None and usage.cached_tokens is not None and usage.prompt_tokens > 0:
            self.index.correct(self, usage.cached_tokens / usage.prompt_tokens)


class PrefixIndex:
    """A ``PrefixCacheIndex`` of bounded size."""

    def __init__(self, max_bytes: int = DEFAULT_BYTES) -> None:
        self._limit = max(1, max_bytes // BYTES_PER_ENTRY)
        self._locations: dict[int, int] = {}
        self._caches: dict[Endpoint, EngineCache] = {}
        self._masks: dict[Endpoint, int] = {}
        self._removed: list[EngineCache] = []
        """Caches of removed endpoints, evicted bit by bit."""
        self._free_bits: list[int] = []
        self._size = 0
        self._pending = 0
        """Blocks of pending prompts."""

    def __len__(self) -> int:
        """The number of blocks, counted once for each endpoint; pending ones are not among them."""
        return self._size

    def match(self, chain: Chain, endpoints: Sequence[Endpoint]) -> list[int]:
        """The cached blocks of each endpoint from the start of ``chain``. Changes nothing."""
        mask_of = self._masks.get
        masks = [mask_of(endpoint, 0) for endpoint in endpoints]
        size = len(chain)
        if not size:
            return [0] * len(masks)
        endpoints_with = self._locations.get
        alive = sum(masks) & endpoints_with(chain[0], 0)
        if not alive or endpoints_with(chain[-1], 0) & alive == alive:  # what some have, all of them have to its end
            return [size if mask & alive else 0 for mask in masks]
        lengths = dict.fromkeys(masks, 0)
        depth = 1
        while alive and depth < size:
            if endpoints_with(chain[-1], 0) & alive == alive:
                depth = size
                break
            # An endpoint with a block has those before it: bisect for the first block that some endpoint lacks.
            end = size - 1
            while depth < end:
                middle = (depth + end) >> 1
                if endpoints_with(chain[middle], 0) & alive == alive:
                    depth = middle + 1
                else:
                    end = middle
            still = alive & endpoints_with(chain[depth], 0)
            lost = alive ^ still
            while lost:
                mask = lost & -lost
                lengths[mask] = depth
                lost ^= mask
            alive = still
            depth += 1
        return [depth if mask & alive else lengths[mask] for mask in masks]

    def sent(self, chain: Chain, endpoint: Endpoint, matched: int) -> RecordedPrompt:
        """Record that the endpoint is about to compute ``chain``, of which it had ``matched`` blocks."""
        cache = self._caches.get(endpoint) or self._add(endpoint)
        if endpoint.report.cache_tokens:  # the engine's reported capacity
            cache.capacity = min(cache.capacity, endpoint.report.cache_tokens * BYTES_PER_TOKEN // BLOCK)
        used = cache.blocks.get(chain[matched - 1]) if matched else None
        fresh = chain[matched : matched + max(0, self._limit // PENDING_FRACTION - self._pending)]
        mask, pending, locations = cache.mask, cache.pending, self._locations
        for block in fresh:
            pending[block] = pending.get(block, 0) + 1
            locations[block] = locations.get(block, 0) | mask
        self._pending += len(fresh)
        return RecordedPrompt(self, cache, chain, matched, -1 if used is None else cache.clock - used, fresh)

    def removed(self, endpoint: Endpoint) -> None:
        """Forget the endpoint: it matches nothing from now on, and later requests evict its blocks bit by bit."""
        cache = self._caches.pop(endpoint, None)
        if cache is not None:
            cache.removed = True
            del self._masks[endpoint]
            self._removed.append(cache)

    # called by ``RecordedPrompt``

    def insert(self, recorded: RecordedPrompt) -> None:
        """The endpoint has computed the prompt: it is the most recently used one, and evicts others."""
        cache, chain, matched = recorded.cache, recorded.chain, recorded.matched
        if cache.removed:
            self.abandon(recorded)
            return
        blocks, mask, locations = cache.blocks, cache.mask, self._locations
        if matched and chain[matched - 1] not in blocks:
            matched = 0  # it was pending, and failed, or has been evicted since
        cache.clock += len(chain) - matched
        stamp = cache.clock
        before = len(blocks)
        touch = blocks.move_to_end
        for block in reversed(chain[matched:] if matched else chain):
            blocks[block] = stamp
            touch(block)
            locations[block] = locations.get(block, 0) | mask
        if matched and stamp - blocks[chain[matched - 1]] >= before // RECENT_FRACTION:
            for block in reversed(chain[:matched]):
                if block in blocks:
                    blocks[block] = stamp
                    touch(block)
        self.abandon(recorded)
        new = len(blocks) - before
        if new or self._removed:
            self._size += new
            self._make_room(cache, new)

    def abandon(self, recorded: RecordedPrompt) -> None:
        """The prompt is no longer pending: it is inserted, or the endpoint does not compute it."""
        cache, brought = recorded.cache, recorded.pending
        pending, blocks = cache.pending, cache.blocks
        self._pending -= len(brought)
        recorded.pending = ()
        for block in brought:
            count = pending.pop(block, 0)
            if count > 1:
                pending[block] = count - 1
            elif count and block not in blocks:
                self._clear(block, cache.mask)

    def drop(self, cache: EngineCache, chain: Chain, start: int) -> None:
        """Remove the blocks of ``chain`` from position ``start`` on from this cache.

        Blocks of longer prompts behind this one's end stay until they are evicted, and may match wrongly.
        """
        blocks = cache.blocks
        for block in chain[start:]:
            if blocks.pop(block, None) is not None:
                self._size -= 1
                if block not in cache.pending:
                    self._clear(block, cache.mask)

    def correct(self, recorded: RecordedPrompt, share: float) -> None:
        """Correct the estimate by the share of the prompt that was really cached, as a response reported it.

        A prompt last used long ago that is missing was evicted: the cache is smaller than estimated and older prompts
        are gone as well. The prompt itself is cached by now, whatever was reported.
        """
        cache, chain, age = recorded.cache, recorded.chain, recorded.age
        predicted = recorded.matched / len(chain) if chain else 0.0
        if share > MOST_SHARE:  # more than there is: a sum over requests, say
            cache.doubts = DOUBTS
        elif cache.doubts:
            cache.doubts -= 1
        if cache.doubts:
            return
        if predicted > 0.5:
            seen = share / predicted
            if seen > cache.unit:
                cache.unit = min(1.0, seen)
            elif seen > cache.unit / 2:
                cache.unit -= (cache.unit - seen) / UNIT_MEMORY
        if not cache.unit:  # it has never reported any
            return
        size = len(cache.blocks)
        slack = 1 + len(chain) // 8
        missing = recorded.matched - len(chain) * share / cache.unit
        cache.clock += max(0, int(missing))
        if missing < -slack or (missing <= slack and 2 * age >= size):
            cache.capacity = min(self._limit, cache.capacity + cache.capacity // CAPACITY_STEP + 1)
        elif missing > slack and 2 * age >= size and age >= 0:
            cache.capacity = max(len(chain), size - size // CAPACITY_STEP - 1)
            self._evict(cache, min(size - cache.capacity, EVICTION_BATCH))

    def _add(self, endpoint: Endpoint) -> EngineCache:
        bit = self._free_bits.pop() if self._free_bits else len(self._caches) + len(self._removed)
        cache = self._caches[endpoint] = EngineCache(1 << bit, self._limit)
        self._masks[endpoint] = cache.mask
        return cache

    def _make_room(self, cache: EngineCache, new: int) -> None:
        """Evict down to the cache's capacity and its share of the memory, and all caches to the limit."""
        if self._removed:
            last = self._removed[-1]
            self._evict(last, min(len(last.blocks), EVICTION_BATCH + new))
            for _ in range(min(len(last.pending), EVICTION_BATCH + new)):
                self._clear(last.pending.popitem()[0], last.mask)
            if not (last.blocks or last.pending):
                self._removed.pop()
                self._free_bits.append(last.mask.bit_length() - 1)
        over = len(cache.blocks) - min(cache.capacity, self._limit // max(1, len(self._caches)))
        if over > 0:
            self._evict(cache, min(over, EVICTION_BATCH + new))
        while self._size > self._limit:
            largest = max((*self._caches.values(), *self._removed), key=lambda each: len(each.blocks))
            self._evict(largest, min(len(largest.blocks), self._size - self._limit))

    def _evict(self, cache: EngineCache, count: int) -> None:
        oldest, pending = cache.blocks.popitem, cache.pending
        self._size -= count
        for _ in range(count):
            block = oldest(last=False)[0]
            if block not in pending:
                self._clear(block, cache.mask)

    def _clear(self, block: int, mask: int) -> None:
        """This cache no longer has the block."""
        left = self._locations.get(block, 0) & ~mask
        if left:
            self._locations[block] = left
        else:
            self._locations.pop(block, None)
