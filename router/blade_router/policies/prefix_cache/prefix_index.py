"""The approximate prefix-cache index: what each engine probably has cached, judged by what was sent to it.

One dictionary maps a block's hash to a bit mask of the endpoints that probably have it, so a lookup costs the same
for two endpoints and for two hundred. Each endpoint has its own LRU order, as each engine has; ``max_bytes`` bounds
them together. An engine computes prompts in about the order they come, so the index is what a prompt sent now will
find: a prompt enters the LRU order when it is sent, and what it pushes out matches nothing from then on. It is
*pending* until its response has begun. One that fails leaves nothing behind, and what it pushed out comes back, or a
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
"""Pending prompts may take an eighth of the memory on top; one beyond that is recorded when its response begins."""
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

    __slots__ = ("blocks", "capacity", "clock", "doubts", "leaving", "mask", "pending", "removed", "unit")

    def __init__(self, mask: int, capacity: int) -> None:
        self.mask = mask
        self.blocks: OrderedDict[int, int] = OrderedDict()
        """Block → clock of its last use, in LRU order; a prompt's end counts as older than its start."""
        self.leaving: OrderedDict[int, int] = OrderedDict()
        """What pending prompts have pushed out of ``blocks``, the first one first. It matches nothing."""
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

    def size(self) -> int:
        """Blocks it holds; pending ones are among them."""
        return len(self.blocks) + len(self.leaving)


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
        elif usage is not None and usage.prompt_tokens > (len(self.chain) + 1) * BLOCK:
            pass  # more tokens than bytes: most of it is not in the request (a kept conversation, pictures)
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
        return self._size - sum(len(cache.pending) for cache in (*self._caches.values(), *self._removed))

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
        blocks, pending = cache.blocks, cache.pending
        used = age = -1
        if matched:
            used = blocks.get(chain[matched - 1], -1)
            if used >= 0:
                age = -1 if chain[matched - 1] in pending else cache.clock - used
        fresh = chain[matched:]
        if len(fresh) > self._limit // PENDING_FRACTION - self._pending:
            fresh = ()
        if fresh:
            cache.clock += len(fresh)
            self._append(cache, fresh)
            for block in fresh:
                pending[block] = pending.get(block, 0) + 1
            self._pending += len(fresh)
        if used >= 0:
            self._touch(cache, chain, matched, used)
        if fresh:
            over = len(blocks) - self._room(cache)
            if over > 0:
                self._push_out(cache, min(over, EVICTION_BATCH + len(fresh)))
        return RecordedPrompt(self, cache, chain, matched, age, fresh)

    def removed(self, endpoint: Endpoint) -> None:
        """Forget the endpoint: it matches nothing from now on, and later requests evict its blocks bit by bit."""
        cache = self._caches.pop(endpoint, None)
        if cache is not None:
            cache.removed = True
            del self._masks[endpoint]
            self._removed.append(cache)

    # called by ``RecordedPrompt``

    def insert(self, recorded: RecordedPrompt) -> None:
        """The endpoint has computed the prompt: its blocks are no longer pending, whoever brought them."""
        cache, chain, matched = recorded.cache, recorded.chain, recorded.matched
        if cache.removed:
            self.abandon(recorded)
            return
        pending = cache.pending
        if pending:
            for block in chain if matched and chain[matched - 1] in pending else recorded.pending:
                pending.pop(block, None)
        new, blocks = len(recorded.pending), cache.blocks
        missing = new < len(chain) - matched  # it is recorded only now
        if matched and chain[matched - 1] not in blocks:  # what brought its beginning has failed, or it is pushed out
            missing |= chain[matched] in blocks if new else chain[matched - 1] not in cache.leaving
        if missing:
            new = len(chain)
            cache.clock += new
            self._append(cache, chain)
        self._pending -= len(recorded.pending)
        recorded.pending = ()
        if new or self._removed:
            self._make_room(cache, new)

    def abandon(self, recorded: RecordedPrompt) -> None:
        """The endpoint does not compute the prompt."""
        cache, brought = recorded.cache, recorded.pending
        pending, blocks, leaving = cache.pending, cache.blocks, cache.leaving
        self._pending -= len(brought)
        cache.clock -= len(brought)
        recorded.pending = ()
        for block in brought:
            count = pending.pop(block, 0)
            if count > 1:
                pending[block] = count - 1
            elif count:
                if blocks.pop(block, None) is not None:
                    self._clear(block, cache.mask)
                    self._size -= 1
                elif leaving.pop(block, None) is not None:
                    self._size -= 1
        if leaving and not cache.removed:
            locations, mask = self._locations, cache.mask
            for _ in range(min(len(leaving), self._room(cache) - len(blocks))):
                block, stamp = leaving.popitem()
                blocks[block] = stamp
                blocks.move_to_end(block, last=False)
                locations[block] = locations.get(block, 0) | mask

    def correct(self, recorded: RecordedPrompt, share: float) -> None:
        """Correct the estimate by the share of the prompt that was really cached, as a response reported it.

        A prompt last used long ago that is missing was evicted: the cache is smaller than estimated and older prompts
        are gone as well. The prompt itself is cached by now, whatever was reported.
        """
        cache, chain, age = recorded.cache, recorded.chain, recorded.age
        if cache.removed:
            return
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
        size = cache.size()
        slack = 1 + len(chain) // 8
        missing = recorded.matched - len(chain) * share / cache.unit
        cache.clock += max(0, int(missing))
        if missing < -slack or (missing <= slack and 2 * age >= size):
            cache.capacity = min(self._limit, cache.capacity + cache.capacity // CAPACITY_STEP + 1)
        elif missing > slack and 2 * age >= size and age >= 0:
            cache.capacity = max(len(chain), size - size // CAPACITY_STEP - 1)
            self._evict(cache, max(0, min(size - cache.capacity, EVICTION_BATCH)))

    def _add(self, endpoint: Endpoint) -> EngineCache:
        bit = self._free_bits.pop() if self._free_bits else len(self._caches) + len(self._removed)
        cache = self._caches[endpoint] = EngineCache(1 << bit, self._limit)
        self._masks[endpoint] = cache.mask
        return cache

    def _room(self, cache: EngineCache) -> int:
        """Blocks this cache may have: its capacity, and its share of the memory."""
        return min(cache.capacity, self._limit // max(1, len(self._caches)))

    def _append(self, cache: EngineCache, chain: Chain) -> None:
        """These blocks are the most recently used ones."""
        blocks, leaving, stamp, mask, locations = cache.blocks, cache.leaving, cache.clock, cache.mask, self._locations
        before = len(blocks) + len(leaving)
        for block in reversed(chain):
            if leaving:
                leaving.pop(block, None)
            blocks[block] = stamp
            blocks.move_to_end(block)
            locations[block] = locations.get(block, 0) | mask
        self._size += len(blocks) + len(leaving) - before

    @staticmethod
    def _touch(cache: EngineCache, chain: Chain, matched: int, used: int) -> None:
        """The first ``matched`` blocks of a prompt are used again; nothing is done where they were a moment ago."""
        blocks, stamp = cache.blocks, cache.clock
        if stamp - used >= len(blocks) // RECENT_FRACTION:
            for block in reversed(chain[:matched]):
                if block in blocks:
                    blocks[block] = stamp
                    blocks.move_to_end(block)

    def _push_out(self, cache: EngineCache, count: int) -> None:
        """The oldest blocks will be gone when the pending prompts are computed."""
        oldest, leaving = cache.blocks.popitem, cache.leaving
        for _ in range(count):
            block, stamp = oldest(last=False)
            leaving[block] = stamp
            self._clear(block, cache.mask)

    def _make_room(self, cache: EngineCache, new: int) -> None:
        """Evict down to the cache's capacity and its share of the memory, and all caches to the limit."""
        if self._removed:
            last = self._removed[-1]
            self._evict(last, min(last.size(), EVICTION_BATCH + new))
            if not last.size():
                self._removed.pop()
                self._free_bits.append(last.mask.bit_length() - 1)
        over = cache.size() - len(cache.pending) - self._room(cache)
        if over > 0:
            self._evict(cache, min(over, EVICTION_BATCH + new))
        while self._size - self._pending > self._limit:
            largest = max((*self._caches.values(), *self._removed), key=EngineCache.size)
            self._evict(largest, min(largest.size(), self._size - self._pending - self._limit))

    def _evict(self, cache: EngineCache, count: int) -> None:
        blocks, leaving, pending = cache.blocks, cache.leaving, cache.pending
        count = min(count, cache.size())
        self._size -= count
        for _ in range(count):
            if leaving:
                block = leaving.popitem(last=False)[0]
            else:
                block = blocks.popitem(last=False)[0]
                self._clear(block, cache.mask)
            if pending:
                pending.pop(block, None)

    def _clear(self, block: int, mask: int) -> None:
        """This cache no longer has the block."""
        left = self._locations.get(block, 0) & ~mask
        if left:
            self._locations[block] = left
        else:
            self._locations.pop(block, None)
