"""The exchange of shares of limits between the replicas of a router, over their internal routes.

Each replica says hello to the others once a second, by which it learns their ids, finds itself among the addresses, and
notices who does not respond. All else is sent when a request lacks something (``borrower``). The accounts are in
``quota_ledger``.

A replica that does not respond keeps its share and what it has borrowed, and the others go on with theirs: in a
partition the sum of all shares stays the limit (what an indivisible rest adds is less than one for each replica that is
cut off). After ``FORGET_SECONDS`` both sides are back at equal shares: what was used has left the window.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from blade_protocol import paths
from blade_router.admission.lending.borrower import MAX_NEEDS, Need
from blade_router.admission.lending.quota_ledger import QuotaLedger, Shared
from blade_router.admission.window import SLOT, WINDOW, slot_of
from blade_router.config.token_header import TokenHeader
from blade_router.http.upstream.connection import Connection
from blade_router.http.upstream.errors import BadResponse, UpstreamError
from blade_router.http.upstream.get import read_body
from blade_router.http.upstream.pool import ConnectionPool

logger = logging.getLogger("blade_router.admission")

HELLO_SECONDS = 1.0
"""Between two messages to a replica of which nothing is wanted."""
RESPONSE_SECONDS = 0.5
"""Timeout of a message: a request may be waiting for it."""
FORGET_SECONDS = WINDOW + SLOT
"""Seconds after which the accounts with a replica that does not respond are closed."""
MAX_REPLY_BYTES = 64 << 10
MAX_REPLICAS = 64
"""Replicas that exchange shares; more of them split limits evenly."""


Amount = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
"""Whatever a message says has to fit into shared numbers of 8 bytes."""


class QuotaNeed(msgspec.Struct, array_like=True):
    """What a replica lacks of one resource of a quota."""

    quota: str
    resource: int
    wanted: Amount
    lent: Amount
    """All the sender has ever lent to the receiver of it."""


class QuotaQuery(msgspec.Struct):
    """A message from one replica to another; without needs it is a hello."""

    sender: str
    """The id of the sending process, another one after each start."""
    needs: list[QuotaNeed] = []


class QuotaReply(msgspec.Struct):
    sender: str
    lent: list[Amount]
    """All it has ever lent to the sender of the query, in the order of its needs."""


_encode = msgspec.json.encode
_decode_query = msgspec.json.Decoder(QuotaQuery).decode
_decode_reply = msgspec.json.Decoder(QuotaReply).decode


class Replica:
    """Another replica of this router, or itself: all addresses look alike."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.url = url
        self.id = ""
        self.responds = False
        self.reported = False
        """The log says that it does not respond."""
        self._authority = parts.netloc.encode("latin-1")
        self._pool = ConnectionPool(parts.hostname or "", parts.port or 80, connect_timeout=RESPONSE_SECONDS)

    async def send(self, query: QuotaQuery, token: bytes) -> QuotaReply:
        """Send a message, with the header lines of the token, and wait for the reply.

        Raises:
            UpstreamError, ValueError: none came in time, or a malformed one.
        """
        body = _encode(query)
        head = b"POST %b HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n"
        connection: Connection | None = None
        try:
            async with asyncio.timeout(RESPONSE_SECONDS):
                target = paths.INTERNAL_QUOTAS.encode()
                connection = await self._pool.exchange(
                    head % (target, self._authority, len(body), token), body, lambda connection: None
                )
                content = await read_body(connection, MAX_REPLY_BYTES)
        except TimeoutError:
            raise BadResponse(f"no response within {RESPONSE_SECONDS:g} s") from None
        finally:
            if connection is not None:
                self._pool.release(connection)
        if connection.status != 200:
            raise BadResponse(f"{paths.INTERNAL_QUOTAS}: status {connection.status}")
        return _decode_reply(content)

    def close(self) -> None:
        self._pool.close()


class QuotaExchange:
    """This replica's part of the exchange; with several workers, in the first of them.

    Args:
        shared: what the replicas share.
        token: what the replicas know each other by; without one only those on the same machine talk.
        clock: monotonic seconds, as windows are counted in.
    """

    def __init__(
        self, shared: Sequence[Shared], token: TokenHeader | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.id = secrets.token_hex(8)
        self._ledger = QuotaLedger(shared)
        self._token = token or TokenHeader(None)
        self._clock = clock
        self._replicas: list[Replica] = []
        self._rank: int | None = None
        self._seen: dict[str, float] = {}
        """When a replica's id was last heard of."""
        self._members_changed = asyncio.Event()
        for each in shared:
            each.listeners.append(self._configure)

    def set_members(self, urls: Sequence[str]) -> None:
        """Take over the base URLs of the replicas' internal routes, this one's among them or not."""
        wanted = sorted(set(urls)) if len(urls) <= MAX_REPLICAS else []
        known = {replica.url: replica for replica in self._replicas}
        for url, replica in known.items():
            if url not in wanted:
                replica.close()
                self._ledger.forget(replica.id)
        self._replicas = [known.get(url) or Replica(url) for url in wanted]
        self._find_rank()
        self._members_changed.set()

    async def follow(self) -> None:
        """Say hello to all replicas again and again, until cancelled."""
        while True:
            self._members_changed.clear()
            if len(self._replicas) > 1:
                await asyncio.gather(*(self._hello(replica) for replica in self._replicas))
                self._forget_lost()
            try:
                async with asyncio.timeout(HELLO_SECONDS):
                    await self._members_changed.wait()
            except TimeoutError:
                pass

    async def borrow(self, needs: Sequence[Need]) -> None:
        """Borrow these amounts from the others, as far as they have them."""
        others = [replica for replica in self._replicas if replica.responds and replica.id != self.id]
        await asyncio.gather(*(self._borrow_from(replica, needs) for replica in others))

    def reply(self, message: bytes) -> bytes:
        """The reply to a message of another replica.

        Raises:
            ValueError: it is none.
        """
        query = _decode_query(message)
        if len(query.needs) > MAX_NEEDS:
            raise ValueError(f"more than {MAX_NEEDS} needs")
        if query.sender == self.id:
            return _encode(QuotaReply(self.id, [0] * len(query.needs)))
        now, lent = self._clock(), []
        if query.needs:
            self._seen[query.sender] = now
        for need in query.needs:
            self._ledger.borrowed(query.sender, need.quota, need.resource, need.lent)
            lent.append(self._ledger.lend(query.sender, need.quota, need.resource, need.wanted, slot_of(now)))
        return _encode(QuotaReply(self.id, lent))

    @property
    def rank(self) -> int | None:
        """This replica's place among those that respond; None while it does not know it, or no other one does."""
        return self._rank

    async def _borrow_from(self, replica: Replica, needs: Sequence[Need]) -> None:
        known = replica.id
        query = QuotaQuery(self.id, [QuotaNeed(*need, self._ledger.lent(known, *need[:2])) for need in needs])
        reply = await self._send(replica, query)
        if reply is None or reply.sender != known or len(reply.lent) != len(needs):
            return
        for (name, resource, _), total in zip(needs, reply.lent, strict=True):
            self._ledger.borrowed(known, name, resource, total)

    async def _hello(self, replica: Replica) -> None:
        await self._send(replica, QuotaQuery(self.id))

    async def _send(self, replica: Replica, query: QuotaQuery) -> QuotaReply | None:
        """Send a message; None when no reply came."""
        try:
            reply = await replica.send(query, self._token.lines())
        except (UpstreamError, OSError, ValueError) as error:
            if replica.responds or not replica.reported:
                replica.responds, replica.reported = False, True
                logger.warning("router replica %s does not respond: %s; it shares no limits", replica.url, error)
                self._find_rank()
            return None
        if reply.sender != replica.id:  # another process than before
            self._ledger.forget(replica.id)
            replica.id, replica.responds = reply.sender, False
        self._seen[reply.sender] = self._clock()
        if not replica.responds:
            replica.responds, replica.reported = True, False
            self._find_rank()
        return reply

    def _find_rank(self) -> None:
        """Find this replica's place among those that respond: they lend, and none waits for the ones that do not."""
        ids = [replica.id for replica in self._replicas if replica.responds]
        rank = ids.index(self.id) if self.id in ids and len(ids) > 1 else None
        if rank != self._rank:
            self._rank = rank
            self._configure()

    def _forget_lost(self) -> None:
        """Close the accounts with replicas nobody has heard of for long."""
        oldest = self._clock() - FORGET_SECONDS
        for replica in self._ledger.replicas:
            if self._seen.get(replica, 0.0) < oldest:
                self._ledger.forget(replica)
        self._seen = {replica: seen for replica, seen in self._seen.items() if seen >= oldest}

    def _configure(self) -> None:
        self._ledger.configure(self._rank)
