"""Consistent hashing with bounded loads: routers agree on a key's endpoint, and it moves only when that endpoint goes.

The ring hashes the endpoints' names, so routers agree without talking to each other. The load bound makes a key that
is too popular, or an endpoint with too many keys, spill over to the next one on the ring.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from hashlib import blake2b

from blade_router.endpoints.endpoint import Endpoint
from blade_router.policies.load import load_limit
from blade_router.request.request import ClientRequest

VIRTUAL_NODES = 128
"""Virtual nodes of each endpoint on the ring: shares differ by about a tenth."""
LOAD_FACTOR = 1.25
"""Load bound: no endpoint gets more than this many times the mean load for the sake of affinity."""
SESSION_HEADER = b"x-session-id"


class HashRing:
    """A hash ring of endpoints: they join when they are first seen, and leave with ``remove``."""

    def __init__(self) -> None:
        self._members: set[Endpoint] = set()
        self._virtual_nodes: list[int] = []
        self._owners: list[Endpoint] = []

    def walk(self, key: int, candidates: Sequence[Endpoint]) -> Iterator[Endpoint]:
        """The candidates in ring order, starting at a 64-bit ``key``."""
        left = set(candidates)
        if not left <= self._members:
            self._rebuild(self._members | left)
        owners = self._owners
        count = len(owners)
        place = bisect_left(self._virtual_nodes, key)
        for step in range(count):
            endpoint = owners[(place + step) % count]
            if endpoint in left:
                left.remove(endpoint)
                yield endpoint
                if not left:
                    return

    def pick(self, key: int, candidates: Sequence[Endpoint], factor: float = LOAD_FACTOR) -> tuple[Endpoint, int]:
        """The first endpoint below the load bound, and how many were skipped."""
        room = load_limit(candidates, factor)
        first: Endpoint | None = None
        for skipped, endpoint in enumerate(self.walk(key, candidates)):
            if endpoint.in_flight < room * endpoint.health.weight:
                return endpoint, skipped
            first = first or endpoint
        return first or candidates[0], 0

    def remove(self, endpoint: Endpoint) -> None:
        if endpoint in self._members:
            self._rebuild(self._members - {endpoint})

    def _rebuild(self, members: set[Endpoint]) -> None:
        self._members = members
        places = sorted(
            ((point, each.name, each) for each in members for point in _virtual_nodes(each.name)), key=_place
        )
        self._virtual_nodes = [point for point, _, _ in places]
        self._owners = [each for _, _, each in places]


def hash_key(key: bytes) -> int:
    """A 64-bit hash, the same in every process."""
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big")


def session_key(request: ClientRequest) -> bytes:
    """The session of a request: the header, else the body's ``user``; empty without either."""
    key = request.header(SESSION_HEADER)
    if not key and request.fields.user:
        key = request.fields.user.encode()
    return key


def _place(point: tuple[int, str, Endpoint]) -> tuple[int, str]:
    return point[:2]


def _virtual_nodes(name: str) -> Iterator[int]:
    for index in range(VIRTUAL_NODES // 8):
        digest = blake2b(f"{name}#{index}".encode()).digest()
        for start in range(0, 64, 8):
            yield int.from_bytes(digest[start : start + 8], "big")
