"""The n-grams of one request: what may follow a token, as far as was seen."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

MOST_TOKENS: Final = 2048
"""Tokens whose n-grams are kept; those that were not added to for longest go first."""
MOST_GRAMS: Final = 16384
"""N-grams of all of them: fewer tokens are kept where each may have many. About 2 MiB."""

Gram = tuple[int, ...]


class NgramPool:
    """Token → the n-grams that begin with it, without it; a few for each, the latest last."""

    __slots__ = ("_grams", "_most", "_most_tokens", "size")

    def __init__(self, size: int, most: int) -> None:
        """``size``: tokens of an n-gram; ``most``: n-grams of one token."""
        self.size = size
        self._most = most
        self._most_tokens = min(MOST_TOKENS, MOST_GRAMS // most)
        self._grams: OrderedDict[int, dict[Gram, None]] = OrderedDict()

    def __len__(self) -> int:
        """The number of n-grams."""
        return sum(map(len, self._grams.values()))

    def add(self, first: int, rest: Gram) -> None:
        """Add an n-gram, or make it the latest of its first token."""
        known = self._grams.get(first)
        if known is None:
            if len(self._grams) >= self._most_tokens:
                self._grams.popitem(last=False)
            self._grams[first] = {rest: None}
            return
        self._grams.move_to_end(first)
        known.pop(rest, None)
        known[rest] = None
        if len(known) > self._most:
            del known[next(iter(known))]

    def after(self, token: int) -> list[Gram]:
        """What may follow ``token``, the latest first."""
        return list(reversed(self._grams.get(token, {})))

    def latest_after(self, token: int) -> Gram | None:
        """What followed ``token`` last."""
        known = self._grams.get(token)
        return next(reversed(known)) if known else None
