"""Prefix-cache locations: which endpoints have which KV block, in one dictionary of digest → endpoint bits.

One lookup serves all endpoints at once, unlike a set for each of them. The price is that forgetting an endpoint would
mean visiting every digest; so its bit is retired at once, and swept out a batch at a time.
"""

from collections.abc import Iterable
from typing import Final

BYTES_PER_DIGEST: Final = 112
"""Memory of an entry: key, slot and bits."""
_SWEEP_BATCH: Final = 4_096


class BlockLocations:
    """The endpoints of each digest, a 64-bit number.

    Args:
        max_bytes: memory limit; digests that do not fit are dropped, and so not found.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_digests = max(1, max_bytes // BYTES_PER_DIGEST)
        self.bits: dict[int, int] = {}
        """Digest → bits of its endpoints, retired ones possibly among them. Read-only for others."""
        self._in_use = 0
        self._retired = 0
        self._to_sweep: list[int] = []
        self._swept_bits = 0
        """The retired bits that the present sweep removes."""

    def __len__(self) -> int:
        return len(self.bits)

    def new_bit(self) -> int:
        """Allocate an unused bit."""
        taken = self._in_use | self._retired
        bit = ~taken & (taken + 1)
        self._in_use |= bit
        return bit

    def retire(self, bit: int) -> None:
        """The endpoint with this bit has no blocks any more."""
        self._in_use &= ~bit
        self._retired |= bit

    def add(self, bit: int, digests: Iterable[int]) -> None:
        bits, most = self.bits, self._max_digests
        for digest in digests:
            known = bits.get(digest)
            if known is not None:
                bits[digest] = known | bit
            elif len(bits) < most:
                bits[digest] = bit

    def discard(self, bit: int, digests: Iterable[int]) -> None:
        bits = self.bits
        for digest in digests:
            known = bits.get(digest)
            if known is not None:
                left = known & ~bit
                if left:
                    bits[digest] = left
                else:
                    del bits[digest]

    def sweep(self) -> bool:
        """Remove retired bits from a batch of digests. False: nothing is left to sweep."""
        if not self._to_sweep:
            if not self._retired:
                return False
            self._swept_bits = self._retired
            self._to_sweep = list(self.bits)
        self.discard(self._swept_bits, self._to_sweep[-_SWEEP_BATCH:])
        del self._to_sweep[-_SWEEP_BATCH:]
        if not self._to_sweep:
            self._retired &= ~self._swept_bits
        return True
