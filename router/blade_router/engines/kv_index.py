"""The exact prefix-cache index: which part of a prompt each engine has cached, without a tokenizer.

It chains two maps. The first leads from a text block of a request's chain to the engine's own hash of the KV block
there; it is learnt from the ``x-blade-kv-blocks`` header of an engine's response. The second leads from that hash to
the endpoints that have the block now, and engines' KV events keep it exact: an evicted block is gone here a moment
later, and what another router sent there is here too.

Text and tokens are not cut at the same places, so a text block stands for the KV block at the same relative position
of the prompt, up to one block off. Where it has no data (text nobody sent yet, engines without events) the approximate
index is used.
"""

import asyncio
import base64
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from blade_protocol.limits import KV_INDEX_BYTES
from blade_protocol.state import KV_DIGEST_BYTES, KVBatch, KVSnapshot
from blade_router.endpoints.endpoint import Endpoint
from blade_router.engines.block_locations import BlockLocations
from blade_router.policies.prefix_cache.interface import Chain, PrefixCacheIndex, PrefixInsertion
from blade_router.request.prompt_text import MAX_BLOCKS
from blade_router.request.request import ClientRequest
from blade_router.request.usage import Usage

DEFAULT_BYTES: Final = KV_INDEX_BYTES
PENDING_GRACE_SECONDS: Final = 0.5
"""Seconds after a request's end by which an engine has reported its blocks: until then they count as cached."""
_BYTES_PER_HASH: Final = 128
"""Memory of an entry of the first map."""
_BATCH: Final = 4_096
"""Digests of a snapshot applied before other tasks get a turn."""
_DIGEST_FORMAT: Final = "Q"
"""``memoryview`` format of a digest: eight bytes in this machine's order."""


class _EngineCache:
    """The known content of one endpoint's prefix cache."""

    __slots__ = ("bit", "epoch", "live", "pending", "sequence")

    def __init__(self, bit: int, epoch: str, sequence: int, pending: dict[int, int]) -> None:
        self.bit = bit
        self.epoch = epoch
        self.sequence = sequence
        self.live = True
        """Its events arrive."""
        self.pending = pending
        """Text blocks being computed, with the number of requests that bring them."""


class KvIndex:
    """A prefix-cache index for policies, on top of an approximate one.

    Args:
        approximate: queried where this one has no data; every request is recorded in it.
        max_bytes: memory for both maps, within which the least recently used text is dropped.
        clock: seconds.
    """

    def __init__(
        self,
        approximate: PrefixCacheIndex,
        max_bytes: int = DEFAULT_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.approximate = approximate
        self._clock = clock
        self._caches: dict[Endpoint, _EngineCache] = {}
        self._resets = 0
        """Counts calls of ``forget_all``: a snapshot that was begun before one is dropped."""
        self._locations = BlockLocations(max_bytes * 2 // 3)
        # Two generations: used entries move to the young one, and the old one is dropped as a whole.
        self._hashes: dict[int, int] = {}
        self._old_hashes: dict[int, int] = {}
        self._max_hashes = max(1, max_bytes // 3 // _BYTES_PER_HASH // 2)
        self._expiring: deque[tuple[float, _EngineCache, Chain]] = deque()

    # called by policies

    def match(self, chain: Chain, endpoints: Sequence[Endpoint]) -> list[int]:
        """See :class:`~blade_router.policies.prefix_cache.interface.PrefixCacheIndex`."""
        alive = 0
        tracked: list[tuple[int, _EngineCache]] = []
        for position, endpoint in enumerate(endpoints):
            cache = self._caches.get(endpoint)
            if cache is not None and cache.live:
                tracked.append((position, cache))
                alive |= cache.bit
        if not tracked:
            return self.approximate.match(chain, endpoints)
        if self._expiring:
            self._expire_pending()
        guessed = self.approximate.match(chain, endpoints) if len(tracked) < len(endpoints) else None
        matched = list(guessed) if guessed is not None else [0] * len(endpoints)
        hash_of, locations = self._hashes.get, self._locations.bits
        for depth, block in enumerate(chain):
            block_hash = hash_of(block) or self._block_hash(block)
            lost = alive if block_hash is None else alive & ~locations.get(block_hash, 0)
            if not lost:
                continue
            if block_hash is None and guessed is None:
                guessed = self.approximate.match(chain, endpoints)
            for position, cache in tracked:
                if lost & cache.bit and block not in cache.pending:
                    if block_hash is None and guessed is not None and guessed[position] > depth:
                        continue
                    matched[position] = depth
                    alive &= ~cache.bit
            if not alive:
                return matched
        for position, cache in tracked:
            if alive & cache.bit:
                matched[position] = len(chain)
        return matched

    def sent(self, chain: Chain, endpoint: Endpoint, matched: int) -> PrefixInsertion:
        """Until the engine reports them, the blocks that are new to it count as cached: others may share them."""
        guessed_blocks = self.approximate.match(chain, (endpoint,))[0]  # its own match, which may differ
        insertion = self.approximate.sent(chain, endpoint, guessed_blocks)
        cache = self._caches.get(endpoint)
        if cache is None or matched >= len(chain):
            return insertion
        fresh = chain[matched:]
        pending = cache.pending
        for block in fresh:
            pending[block] = pending.get(block, 0) + 1
        return _PendingBlocks(self, insertion, cache, fresh)

    def removed(self, endpoint: Endpoint) -> None:
        self.forget(endpoint)
        self.approximate.removed(endpoint)

    # called by the data path

    def wanted(self, chain: Chain) -> bool:
        """Whether a request should ask for its block hashes: they are not known, or no endpoint has the known one.

        Not where the chain is only the start of the prompt: then hashes of the whole belong to other places in it.
        """
        if not chain or len(chain) >= MAX_BLOCKS or not self._caches:
            return False
        block_hash = self._block_hash(chain[-1])
        return block_hash is None or not self._locations.bits.get(block_hash)

    def learn(self, chain: Chain, header: bytes) -> None:
        """Learn block hashes from a response's ``x-blade-kv-blocks``; a malformed one is ignored."""
        try:
            block_hashes = _digests(base64.b64decode(header.partition(b":")[2], validate=True)).tolist()
        except ValueError:
            return
        count, total = len(block_hashes), len(chain)
        if not count:
            return
        of_prompt = set(block_hashes)
        for position, block in enumerate(chain, 1):
            known = self._block_hash(block)
            # A hash that this prompt has as well stays: what two prompts share is the same in both.
            if known is None or known not in of_prompt:
                self._remember(block, block_hashes[max(0, position * count // total - 1)])

    # called by the engine watchers

    def position(self, endpoint: Endpoint) -> tuple[str, int] | None:
        """Epoch and sequence number up to which an endpoint's cache is known."""
        cache = self._caches.get(endpoint)
        return (cache.epoch, cache.sequence) if cache is not None else None

    def apply(self, endpoint: Endpoint, batch: KVBatch) -> None:
        """Apply the batch that follows :meth:`position`.

        Raises:
            ValueError: malformed digests; nothing was applied.
        """
        cache, stored, removed = self._caches[endpoint], _digests(batch.stored), _digests(batch.removed)
        self._locations.add(cache.bit, stored)
        self._locations.discard(cache.bit, removed)
        cache.sequence = batch.sequence
        self._locations.sweep()

    async def replace(self, endpoint: Endpoint, snapshot: KVSnapshot) -> None:
        """Replace an endpoint's cache by a snapshot. Other tasks get turns in between: a large one takes a while.

        Raises:
            ValueError: malformed digests.
        """
        locations, digests, resets = self._locations, _digests(snapshot.digests), self._resets
        bit = locations.new_bit()
        try:
            for start in range(0, len(digests), _BATCH):
                locations.add(bit, digests[start : start + _BATCH])
                await asyncio.sleep(0)
        except BaseException:
            locations.retire(bit)
            raise
        if resets != self._resets:
            locations.retire(bit)
            return
        before = self._caches.get(endpoint)
        self.forget(endpoint)
        pending = before.pending if before is not None and before.epoch == snapshot.epoch else {}
        self._caches[endpoint] = _EngineCache(bit, snapshot.epoch, snapshot.sequence, pending)
        while locations.sweep():  # noqa: ASYNC110 - yields to other tasks, waits for nothing
            await asyncio.sleep(0)

    def set_live(self, endpoint: Endpoint, live: bool) -> None:
        """Set whether its events arrive; while they do not, the approximate index is used for it."""
        cache = self._caches.get(endpoint)
        if cache is not None:
            cache.live = live

    def forget(self, endpoint: Endpoint) -> None:
        """Drop all that is known of its cache."""
        cache = self._caches.pop(endpoint, None)
        if cache is not None:
            self._locations.retire(cache.bit)

    def forget_all(self) -> None:
        """Drop all that is known of any cache, snapshots being applied included."""
        self._resets += 1
        for endpoint in list(self._caches):
            self.forget(endpoint)

    # internal

    def _block_hash(self, block: int) -> int | None:
        block_hash = self._hashes.get(block)
        if block_hash is None:
            block_hash = self._old_hashes.get(block)
            if block_hash is not None:
                self._remember(block, block_hash)
        return block_hash

    def _remember(self, block: int, block_hash: int) -> None:
        self._hashes[block] = block_hash
        if len(self._hashes) >= self._max_hashes:
            self._old_hashes, self._hashes = self._hashes, {}

    def _request_ended(self, cache: _EngineCache, fresh: Chain, *, computed: bool) -> None:
        """A request is over: its blocks are reported soon, or were never computed."""
        if computed:
            self._expiring.append((self._clock() + PENDING_GRACE_SECONDS, cache, fresh))
            self._expire_pending()
        else:
            _remove_pending(cache, fresh)

    def _expire_pending(self) -> None:
        now = self._clock()
        while self._expiring and self._expiring[0][0] <= now:
            _, cache, fresh = self._expiring.popleft()
            _remove_pending(cache, fresh)


class _PendingBlocks(PrefixInsertion):
    """An insertion of a prompt of which some blocks are new to the engine."""

    __slots__ = ("_approximate", "_cache", "_computed", "_fresh", "_index")

    def __init__(self, index: KvIndex, approximate: PrefixInsertion, cache: _EngineCache, fresh: Chain) -> None:
        self._index = index
        self._approximate = approximate
        self._cache = cache
        self._fresh = fresh
        self._computed = False

    def first_byte(self) -> None:
        self._computed = True
        self._approximate.first_byte()

    def ended(self, usage: Usage | None) -> None:
        self._index._request_ended(self._cache, self._fresh, computed=self._computed)
        self._approximate.ended(usage)


def _digests(digests: bytes) -> "memoryview[int]":
    """Concatenated digests as numbers.

    Raises:
        ValueError: the length is not a multiple of a digest's.
    """
    if len(digests) % KV_DIGEST_BYTES:
        raise ValueError(f"{len(digests)} bytes are not digests of {KV_DIGEST_BYTES}")
    return memoryview(digests).cast(_DIGEST_FORMAT)


def _remove_pending(cache: _EngineCache, fresh: Chain) -> None:
    pending = cache.pending
    for block in fresh:
        count = pending.get(block, 0)
        if count > 1:
            pending[block] = count - 1
        else:
            pending.pop(block, None)


def index_to_teach(index: KvIndex, endpoint: Endpoint, request: ClientRequest) -> KvIndex | None:
    """``index``, where it wants to learn the block hashes of a request's prompt from the endpoint's response."""
    if request.goes_on:
        return None  # the blocks are those of a conversation that is not in the request
    if endpoint.config.engine != "blade" or not index.wanted(request.prompt.chain):
        return None
    return index
