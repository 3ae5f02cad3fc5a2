"""What a router without feedback knows: the engines it has sent each block to, for ever."""

from __future__ import annotations

from collections.abc import Sequence

from blade_router.endpoints.endpoint import Endpoint


class History:
    """Block → bits of the engines, as a prefix tree without eviction. The trees of these routers hold 2^26 characters
    and more, so nothing is evicted in a run."""

    def __init__(self) -> None:
        self._bits: dict[int, int] = {}
        self._of: dict[Endpoint, int] = {}

    def bit(self, endpoint: Endpoint) -> int:
        bit = self._of.get(endpoint)
        if bit is None:
            bit = self._of[endpoint] = 1 << len(self._of)
        return bit

    def deepest(self, chain: Sequence[int]) -> tuple[int, int]:
        """The blocks of the longest known prefix, and the bits of the engines that have it."""
        bits = self._bits
        low, high = 0, len(chain) + 1
        while high - low > 1:
            middle = (low + high) >> 1
            if chain[middle - 1] in bits:
                low = middle
            else:
                high = middle
        return low, bits[chain[low - 1]] if low else 0

    def add(self, chain: Sequence[int], endpoint: Endpoint) -> None:
        bits, bit = self._bits, self.bit(endpoint)
        for block in reversed(chain):
            known = bits.get(block, 0)
            if known & bit:
                break
            bits[block] = known | bit
