"""Which endpoints have which KV block: one dictionary, digest → bits of endpoints.

One lookup answers for all endpoints at once, which a set for each of them would not. The price is that forgetting an
endpoint would mean to look at every digest; so its bit is retired at once, and washed out a little at a time.
"""

from collections.abc import Iterable
from typing import Final

BYTES_PER_DIGEST: Final = 112
"""What an entry costs: key, slot and bits."""
_WASHED_AT_ONCE: Final = 4_096


class Holders:
    """Digests are numbers of 64 bits.

    Args:
        most_bytes: of memory; what does not fit is not kept, and so not found.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = max(1, most_bytes // BYTES_PER_DIGEST)
        self.bits: dict[int, int] = {}
        """Digest → bits of those who have it; there may be retired ones among them. Not to be changed by others."""
        self._in_use = 0
        self._retired = 0
        self._to_wash: list[int] = []
        self._washed_out = 0
        """The retired bits that this round of washing takes out."""

    def __len__(self) -> int:
        return len(self.bits)

    def new_bit(self) -> int:
        """A bit that nobody has."""
        taken = self._in_use | self._retired
        bit = ~taken & (taken + 1)
        self._in_use |= bit
        return bit

    def retire(self, bit: int) -> None:
        """Whoever had this bit has nothing any more."""
        self._in_use &= ~bit
        self._retired |= bit

    def add(self, bit: int, digests: Iterable[int]) -> None:
        bits, most = self.bits, self._most
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

    def wash(self) -> bool:
        """Take retired bits out of some digests. False: there is nothing to do."""
        if not self._to_wash:
            if not self._retired:
                return False
            self._washed_out = self._retired
            self._to_wash = list(self.bits)
        self.discard(self._washed_out, self._to_wash[-_WASHED_AT_ONCE:])
        del self._to_wash[-_WASHED_AT_ONCE:]
        if not self._to_wash:
            self._retired &= ~self._washed_out
        return True
