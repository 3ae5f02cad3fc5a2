"""Which ranks are ready, and that they belong together."""

from __future__ import annotations

from blade_llm.engine.ranks.lost import RankFailedError, rank_failed
from blade_llm.engine.ranks.messages import RankReady


class ReadyRanks:
    """Takes the ready messages of ranks 1 .. ``size - 1``, which must have ``version``."""

    def __init__(self, size: int, version: str) -> None:
        self._size = size
        self._version = version
        self._missing = set(range(1, size))

    @property
    def missing(self) -> list[int]:
        """Ranks that are not ready, ascending."""
        return sorted(self._missing)

    def add(self, ready: RankReady) -> None:
        """A rank is ready.

        Raises:
            RankFailedError: it does not belong to the others; the message says why.
        """
        if ready.version != self._version:
            raise other_version(ready.rank, ready.version, self._version)
        if ready.size != self._size:
            raise rank_failed(ready.rank, f"was started as one of {ready.size} ranks, rank 0 as one of {self._size}")
        if not 1 <= ready.rank < self._size:
            raise rank_failed(ready.rank, f"does not exist: there are ranks 0 to {self._size - 1}")
        if ready.rank not in self._missing:
            raise rank_failed(ready.rank, "is there twice: two processes were started with its number")
        self._missing.remove(ready.rank)


def other_version(rank: int, version: str, expected: str) -> RankFailedError:
    """The error for a rank that runs ``version`` where rank 0 runs ``expected``."""
    return rank_failed(
        rank, f"runs version {version} and rank 0 version {expected}: install one version and start the engine again"
    )
