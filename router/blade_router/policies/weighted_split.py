"""Splitting requests by weight: sessions by a hash of their key, others by deficit round robin.

A session moves only when the weights move over its point. Shares of other requests are exact, and not only on average.
"""

from collections.abc import Mapping

from blade_router.policies.hashing.hash_ring import hash_key


class WeightedSplit:
    """What each part is behind its share."""

    def __init__(self) -> None:
        self._deficit: dict[str, float] = {}
        """Requests that each part is behind its share."""

    def choose(self, shares: Mapping[str, float], session: bytes) -> str:
        """The part for a request of this session; empty for none. ``shares``: of each part, 1 in all."""
        return _part_at(shares, hash_key(session) / 2.0**64) if session else self._next(shares)

    def copy(self) -> "WeightedSplit":
        """One that chooses the same, and leaves no trace in this."""
        copy = WeightedSplit()
        copy._deficit = self._deficit  # never changed in place
        return copy

    def _next(self, shares: Mapping[str, float]) -> str:
        """The part that is furthest behind its share."""
        deficit = {part: self._deficit.get(part, 0.0) + share for part, share in shares.items()}
        part = max(deficit, key=deficit.__getitem__)
        deficit[part] -= 1.0
        self._deficit = deficit
        return part


def _part_at(shares: Mapping[str, float], point: float) -> str:
    """The part at a point from 0 to 1."""
    for part, share in shares.items():
        point -= share
        if point < 0:
            return part
    return max(shares, key=shares.__getitem__)  # the sum of the shares was a rounding error below the point
