"""The exact index: which part of a prompt each engine has in its prompt cache, without a tokenizer.

Two maps in a row. The first leads from a block of text, named by the chain of its request, to the engine's own name for
the KV block there; it is learnt from the ``x-blade-kv-blocks`` header that an engine's answer brings. The second leads
from that name to the endpoints that have the block now, and engines' events keep it true: what is evicted is gone here
a moment later, and what another router sent there is here too.

Text and tokens are not cut at the same places, so a block of text stands for the KV block at the same share of the
prompt, up to one block off. Where one does not know (text nobody asked about yet, engines without events) the
approximate index has the word.
"""

import asyncio
import base64
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from blade_protocol.state import KV_DIGEST_BYTES, KVBatch, KVSnapshot
from blade_router.endpoints import Endpoint
from blade_router.engines.holders import Holders
from blade_router.policies.source import Chain, Placement, PrefixSource
from blade_router.usage import Usage

DEFAULT_BYTES: Final = 96 << 20
SETTLED_AFTER: Final = 0.5
"""Seconds after a request's end by which an engine has told of its blocks: until then they count as there."""
_BYTES_PER_NAME: Final = 128
"""What an entry of the first map costs."""
_AT_ONCE: Final = 4_096
"""Digests of a snapshot taken in before others get a turn."""
_NUMBER: Final = "Q"
"""A digest as a number: eight bytes in this machine's order."""


class _Copy:
    """What is known of one endpoint's prompt cache."""

    __slots__ = ("bit", "coming", "epoch", "live", "sequence")

    def __init__(self, bit: int, epoch: str, sequence: int, coming: dict[int, int]) -> None:
        self.bit = bit
        self.epoch = epoch
        self.sequence = sequence
        self.live = True
        """Its events arrive."""
        self.coming = coming
        """Blocks of text on their way into its cache, with how many requests bring them."""


class KvIndex:
    """A source of prefixes for policies, over an approximate one.

    Args:
        approximate: asked where this one does not know; told of every request.
        most_bytes: memory for both maps, within which the least recently used text is forgotten.
        clock: seconds.
    """

    def __init__(
        self,
        approximate: PrefixSource,
        most_bytes: int = DEFAULT_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.approximate = approximate
        self._clock = clock
        self._copies: dict[Endpoint, _Copy] = {}
        self._forgotten = 0
        """How often all of them were."""
        self._holders = Holders(most_bytes * 2 // 3)
        # Two generations: what is used moves to the young one, and the old one is forgotten as a whole.
        self._names: dict[int, int] = {}
        self._older: dict[int, int] = {}
        self._most_names = max(1, most_bytes // 3 // _BYTES_PER_NAME // 2)
        self._settling: deque[tuple[float, _Copy, Chain]] = deque()

    # what policies ask

    def match(self, chain: Chain, endpoints: Sequence[Endpoint]) -> list[int]:
        """See :class:`~blade_router.policies.source.PrefixSource`."""
        alive = 0
        followed: list[tuple[int, _Copy]] = []
        for position, endpoint in enumerate(endpoints):
            copy = self._copies.get(endpoint)
            if copy is not None and copy.live:
                followed.append((position, copy))
                alive |= copy.bit
        if not followed:
            return self.approximate.match(chain, endpoints)
        if self._settling:
            self._settle()
        guessed = self.approximate.match(chain, endpoints) if len(followed) < len(endpoints) else None
        matched = list(guessed) if guessed is not None else [0] * len(endpoints)
        name_of, holders = self._names.get, self._holders.bits
        for number, block in enumerate(chain):
            name = name_of(block) or self._name(block)
            lost = alive if name is None else alive & ~holders.get(name, 0)
            if not lost:
                continue
            if name is None and guessed is None:
                guessed = self.approximate.match(chain, endpoints)
            for position, copy in followed:
                if lost & copy.bit and block not in copy.coming:
                    if name is None and guessed is not None and guessed[position] > number:
                        continue
                    matched[position] = number
                    alive &= ~copy.bit
            if not alive:
                return matched
        for position, copy in followed:
            if alive & copy.bit:
                matched[position] = len(chain)
        return matched

    def sent(self, chain: Chain, endpoint: Endpoint, matched: int) -> Placement:
        """Until the engine has told of them, the blocks that are new to it count as there: others may share them."""
        believed = self.approximate.match(chain, (endpoint,))[0]  # its own belief, which may be another
        placement = self.approximate.sent(chain, endpoint, believed)
        copy = self._copies.get(endpoint)
        if copy is None or matched >= len(chain):
            return placement
        fresh = chain[matched:]
        coming = copy.coming
        for block in fresh:
            coming[block] = coming.get(block, 0) + 1
        return _Fresh(self, placement, copy, fresh)

    def removed(self, endpoint: Endpoint) -> None:
        self.forget(endpoint)
        self.approximate.removed(endpoint)

    # what the data path tells

    def wanted(self, chain: Chain) -> bool:
        """Whether a request should ask for its blocks' names: they are not known, or nobody has what is known."""
        if not chain or not self._copies:
            return False
        name = self._name(chain[-1])
        return name is None or not self._holders.bits.get(name)

    def learn(self, chain: Chain, header: bytes) -> None:
        """Take the names from an answer's ``x-blade-kv-blocks``; one that makes no sense teaches nothing."""
        try:
            names = _numbers(base64.b64decode(header.partition(b":")[2], validate=True)).tolist()
        except ValueError:
            return
        count, total = len(names), len(chain)
        if not count:
            return
        of_prompt = set(names)
        for number, block in enumerate(chain, 1):
            known = self._name(block)
            # A name that this prompt has as well stays: what two prompts share is the same in both.
            if known is None or known not in of_prompt:
                self._remember(block, names[max(0, number * count // total - 1)])

    # what followers tell

    def position(self, endpoint: Endpoint) -> tuple[str, int] | None:
        """Epoch and sequence of what is known of an endpoint's cache."""
        copy = self._copies.get(endpoint)
        return (copy.epoch, copy.sequence) if copy is not None else None

    def apply(self, endpoint: Endpoint, batch: KVBatch) -> None:
        """The batch that follows on :meth:`position`.

        Raises:
            ValueError: it does not consist of digests; nothing was taken in.
        """
        copy, stored, removed = self._copies[endpoint], _numbers(batch.stored), _numbers(batch.removed)
        self._holders.add(copy.bit, stored)
        self._holders.discard(copy.bit, removed)
        copy.sequence = batch.sequence
        self._holders.wash()

    async def replace(self, endpoint: Endpoint, snapshot: KVSnapshot) -> None:
        """All of an endpoint's cache. Others get their turn in between: a large one takes a while.

        Raises:
            ValueError: it does not consist of digests.
        """
        holders, digests, forgotten = self._holders, _numbers(snapshot.digests), self._forgotten
        bit = holders.new_bit()
        try:
            for start in range(0, len(digests), _AT_ONCE):
                holders.add(bit, digests[start : start + _AT_ONCE])
                await asyncio.sleep(0)
        except BaseException:
            holders.retire(bit)
            raise
        if forgotten != self._forgotten:
            holders.retire(bit)
            return
        before = self._copies.get(endpoint)
        self.forget(endpoint)
        coming = before.coming if before is not None and before.epoch == snapshot.epoch else {}
        self._copies[endpoint] = _Copy(bit, snapshot.epoch, snapshot.sequence, coming)
        while holders.wash():  # noqa: ASYNC110 - to let others work, not to wait for them
            await asyncio.sleep(0)

    def set_live(self, endpoint: Endpoint, live: bool) -> None:
        """Whether its events arrive; while they do not, the approximate index speaks for it."""
        copy = self._copies.get(endpoint)
        if copy is not None:
            copy.live = live

    def forget(self, endpoint: Endpoint) -> None:
        """Nothing is known of its cache any more."""
        copy = self._copies.pop(endpoint, None)
        if copy is not None:
            self._holders.retire(copy.bit)

    def forget_all(self) -> None:
        """Nothing is known of any cache any more, whatever is being taken in right now."""
        self._forgotten += 1
        for endpoint in list(self._copies):
            self.forget(endpoint)

    # inside

    def _name(self, block: int) -> int | None:
        name = self._names.get(block)
        if name is None:
            name = self._older.get(block)
            if name is not None:
                self._remember(block, name)
        return name

    def _remember(self, block: int, name: int) -> None:
        self._names[block] = name
        if len(self._names) >= self._most_names:
            self._older, self._names = self._names, {}

    def _arrive(self, copy: _Copy, fresh: Chain, *, computed: bool) -> None:
        """A request is over: its blocks are told of soon, or were never computed."""
        if computed:
            self._settling.append((self._clock() + SETTLED_AFTER, copy, fresh))
            self._settle()
        else:
            _leave(copy, fresh)

    def _settle(self) -> None:
        now = self._clock()
        while self._settling and self._settling[0][0] <= now:
            _, copy, fresh = self._settling.popleft()
            _leave(copy, fresh)


class _Fresh(Placement):
    """Some of the prompt is new to the engine."""

    __slots__ = ("_below", "_computed", "_copy", "_fresh", "_index")

    def __init__(self, index: KvIndex, below: Placement, copy: _Copy, fresh: Chain) -> None:
        self._index = index
        self._below = below
        self._copy = copy
        self._fresh = fresh
        self._computed = False

    def first_byte(self) -> None:
        self._computed = True
        self._below.first_byte()

    def ended(self, usage: Usage | None) -> None:
        self._index._arrive(self._copy, self._fresh, computed=self._computed)
        self._below.ended(usage)


def _numbers(digests: bytes) -> "memoryview[int]":
    """Digests that stand one after another, as numbers.

    Raises:
        ValueError: their length is not that of digests.
    """
    if len(digests) % KV_DIGEST_BYTES:
        raise ValueError(f"{len(digests)} bytes are not digests of {KV_DIGEST_BYTES}")
    return memoryview(digests).cast(_NUMBER)


def _leave(copy: _Copy, fresh: Chain) -> None:
    coming = copy.coming
    for block in fresh:
        count = coming.get(block, 0)
        if count > 1:
            coming[block] = count - 1
        else:
            coming.pop(block, None)
