"""Splitting requests by weight: sessions by a hash of their key, others by drawing lots in blocks.

A session moves only when the weights move over its point. Of other requests each part gets exactly its share of a
block, at most 100 requests, and which of them is left to chance: clients that ask the same questions in turn would give
a part that gets every third request its own questions, and who compares the parts would compare those.
"""

from collections.abc import Mapping

from blade_router.policies.hashing.hash_ring import hash_key

LONGEST_BLOCK = 100
"""Requests: shares are percents, as a rule. Of others the rest is carried to the next block."""
_ROUNDING = 1e-6


class WeightedSplit:
    """The lots of the present block."""

    def __init__(self) -> None:
        self._shares: Mapping[str, float] = {}
        self._lots: dict[str, float] = {}
        """Requests of the block that each part has yet to get."""
        self._left = 0
        """Requests of the block that are yet to come."""
        self._drawn = 0
        """Requests so far, by which chance goes: a copy draws the same."""

    def choose(self, shares: Mapping[str, float], session: bytes) -> str:
        """The part for a request of this session; empty for none. ``shares``: of each part, 1 in all."""
        return _part_at(shares, hash_key(session) / 2.0**64) if session else self._next(shares)

    def copy(self) -> "WeightedSplit":
        """One that chooses the same, and leaves no trace in this."""
        copy = WeightedSplit()
        copy._shares, copy._left, copy._drawn = self._shares, self._left, self._drawn
        copy._lots = self._lots  # never changed in place
        return copy

    def _next(self, shares: Mapping[str, float]) -> str:
        """The part on which the lot falls: the more likely the more it has yet to get."""
        if not self._left or shares != self._shares:
            self._begin_block(shares)
        # None is left where a part has gone that was behind.
        lots = {part: count for part, count in self._lots.items() if count > _ROUNDING} or dict(shares)
        self._drawn += 1
        part = _part_at(lots, hash_key(b"%d" % self._drawn) / 2.0**64 * sum(lots.values()))
        self._lots = {**self._lots, part: self._lots[part] - 1.0}
        self._left -= 1
        return part

    def _begin_block(self, shares: Mapping[str, float]) -> None:
        """Each part gets its share of it, and what it was behind its shares before."""
        behind = {part: count - self._left * self._shares[part] for part, count in self._lots.items()}
        self._left = _block(shares)
        self._lots = {part: share * self._left + behind.get(part, 0.0) for part, share in shares.items()}
        self._shares = dict(shares)


def _block(shares: Mapping[str, float]) -> int:
    """The fewest requests of which all shares are whole numbers."""
    for length in range(1, LONGEST_BLOCK):
        if all(abs(share * length - round(share * length)) < _ROUNDING for share in shares.values()):
            return length
    return LONGEST_BLOCK


def _part_at(shares: Mapping[str, float], point: float) -> str:
    """The part at a point from 0 to the sum of all."""
    for part, share in shares.items():
        point -= share
        if point < 0:
            return part
    return max(shares, key=shares.__getitem__)  # the sum of the shares was a rounding error below the point
