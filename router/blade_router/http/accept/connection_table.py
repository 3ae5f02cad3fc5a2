"""The open client connections: how many there may be, of one address and in all, and which one makes room.

A new connection is worth more than one on which nothing happens. So at a limit the one closes that is missed least:
one whose head is stalled, then one that never sent a request, then the one that has been idle for longest, then one
whose body is stalled. No request in flight is given up. Only when all connections are busy is the new one refused: it
is let in as a *reserve* connection, on which liveness probes are served and everything else gets a 503.
"""

import enum
import ipaddress
import math
from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Protocol

MAX_CONNECTIONS = 8192
"""Default limit of client connections of a process. An idle one takes about 6 KB."""
RESERVE = 32
"""Connections let in beyond the limit; one more closes the oldest of them."""
STALLED_SECONDS = 1.0
"""Seconds after which a head, body or TLS handshake of which nothing came counts as stalled."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
RESCAN_SECONDS = 20e-6
"""Seconds for each connection after which they are searched again for one to evict: that takes a twentieth of it."""
NETWORK_BITS = 64
"""Of an IPv6 address: what is behind them its owner chooses freely, so one client has as many as it likes."""
RESCAN_SHARE = 16
"""Or as soon as one connection in so many was evicted: a search then costs little for each."""


class Idleness(enum.IntEnum):
    """What a connection waits for on which no request is being served; the first of these is missed least."""

    HEAD = 0
    """The rest of a head, or of a TLS handshake."""
    FIRST_REQUEST = 1
    NEXT_REQUEST = 2
    BODY = 3


Rank = tuple[Idleness, float]
"""What it waits for, and since when (the loop's time)."""


class Evictable(Protocol):
    """A connection, as the table knows it."""

    @property
    def address(self) -> str:
        """The other side's; empty where it has none."""

    def idleness(self) -> Rank | None:
        """What it waits for; None while a request is being served on it."""

    def abort(self) -> None:
        """Close it at once."""


class ConnectionTable:
    """All connections of one server.

    Args:
        most: limit of all connections.
        most_per_address: limit of those from one address, or one IPv6 network of ``NETWORK_BITS``; 0 for none.
        exempt: addresses without that limit, as many clients come from them (proxies).
        clock: the event loop's time.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        most: int = MAX_CONNECTIONS,
        most_per_address: int = 0,
        exempt: Callable[[str], bool] = lambda address: False,
    ) -> None:
        self.most = most
        self.most_per_address = most_per_address
        self.evicted = 0
        """Connections closed to make room, since the start."""
        self._clock = clock
        self._exempt = exempt
        self._by_address: dict[str, set[Evictable]] = {}
        """By ``_origin``."""
        self._count = 0
        self._reserve: dict[Evictable, None] = {}
        self._whole = _Candidates()
        self._of_address: dict[str, _Candidates] = {}

    def __len__(self) -> int:
        """The number of connections, without the reserve."""
        return self._count

    def make_room(self, address: str) -> bool:
        """Make room for a connection from there; False: it can only be a reserve connection."""
        if self.most_per_address and address:
            origin = self._origin(address)
            siblings = self._by_address.get(origin, ())
            if len(siblings) >= self.most_per_address and not self._exempt(address):
                candidates = self._of_address.setdefault(origin, _Candidates())
                if not self._evict(candidates, siblings, len(siblings)):
                    return False
        return self._count < self.most or self.evict_one()

    def evict_one(self) -> bool:
        """Close the connection that is missed least; False: all are busy."""
        return self._evict(self._whole, (each for few in self._by_address.values() for each in few), self._count)

    def add(self, connection: Evictable) -> None:
        self._by_address.setdefault(self._origin(connection.address), set()).add(connection)
        self._count += 1

    def add_reserve(self, connection: Evictable) -> None:
        """Let one in beyond the limit; it closes when ``RESERVE`` others have come after it."""
        if len(self._reserve) >= RESERVE:
            oldest = next(iter(self._reserve))
            self.discard(oldest)
            oldest.abort()
        self._reserve[connection] = None

    def discard(self, connection: Evictable) -> None:
        """Forget a connection, if it is known."""
        if connection in self._reserve:
            del self._reserve[connection]
            return
        origin = self._origin(connection.address)
        siblings = self._by_address.get(origin)
        if siblings is None or connection not in siblings:
            return
        siblings.remove(connection)
        self._count -= 1
        if not siblings:
            del self._by_address[origin]
            self._of_address.pop(origin, None)

    def _origin(self, address: str) -> str:
        """What connections are counted by: a client's address or network; a proxy only by its own address."""
        return address if self._exempt(address) else network_of(address)

    def _evict(self, candidates: "_Candidates", connections: Iterable[Evictable], count: int) -> bool:
        connection = candidates.next()
        if connection is None and candidates.may_scan(self._clock(), count):
            candidates.scan(self._clock(), connections)
            connection = candidates.next()
        if connection is None:
            return False
        self.evicted += 1
        self.discard(connection)
        connection.abort()
        return True


@lru_cache(4096)
def network_of(address: str) -> str:
    """The network of an IPv6 address; an IPv4 address, also one that is mapped or translated (NAT64), as it is."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    if found in _NAT64:
        return str(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF))
    return str(ipaddress.IPv6Network((found, NETWORK_BITS), strict=False))


class _Candidates:
    """Connections in the order in which they may be evicted, as it was at the last search.

    One that has been busy since then is passed over. So nothing has to be kept in order while requests come and go.
    """

    def __init__(self) -> None:
        self._queue: deque[tuple[Rank, Evictable]] = deque()
        self._scanned_at = -math.inf
        self._evicted = 0

    def next(self) -> Evictable | None:
        while self._queue:
            rank, connection = self._queue.popleft()
            if connection.idleness() == rank:
                self._evicted += 1
                return connection
        return None

    def may_scan(self, now: float, count: int) -> bool:
        return now - self._scanned_at >= count * RESCAN_SECONDS or self._evicted * RESCAN_SHARE >= count

    def scan(self, now: float, connections: Iterable[Evictable]) -> None:
        self._scanned_at, self._evicted = now, 0
        found = [(rank, each) for each in connections if (rank := each.idleness()) is not None]
        stalled = now - STALLED_SECONDS
        at_once = (Idleness.FIRST_REQUEST, Idleness.NEXT_REQUEST)
        found = [each for each in found if each[0][0] in at_once or each[0][1] <= stalled]
        found.sort(key=lambda each: each[0])
        self._queue.extend(found)
