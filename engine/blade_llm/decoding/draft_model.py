"""A draft model as a method of speculative decoding: which positions of each request it has computed.

Its KV cache has the block tables of the target: a token's keys and values lie in the same block and offset of both.
What the draft has computed of a block is known by the digest of the block's content, so a prefix that is cached for the
target is cached for the draft too, as far as that was there. A draft model that lags behind a request (its prompt, and
what was decoded without drafts) catches up in chunks, before it drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from blade_llm.decoding.method import NO_CANDIDATE, Candidate
from blade_llm.scheduling.request import Request

CATCH_UP: Final = 512
GPU_CATCH_UP: Final = 2048
"""Positions that the draft model computes in one step without drafting, at most, for all requests. A GPU takes hardly
longer for so many."""
_BESIDE_DRAFTING: Final = 64
"""Positions that it may lag behind and draft in the same step."""


@dataclass(slots=True)
class _Progress:
    """What the draft model has of one request."""

    block_table: list[int]
    """The request's own list, which is another one after a preemption."""
    computed: int = 0
    """Positions whose keys and values are there; those behind the last known token may be of rejected tokens."""
    noted: int = 0
    """Blocks whose digests are noted."""


class DraftModel:
    """Keeps the positions that a draft model has computed; implements :class:`~blade_llm.decoding.method.Method`."""

    kinds = 1

    def __init__(self, block_size: int, max_positions: int, catch_up: int = CATCH_UP, shift: int = 0) -> None:
        """``max_positions``: of the draft model; longer sequences get no drafts. ``catch_up``: positions that it
        computes in one step without drafting, at most. ``shift``: 1 of a head, which computes each position with the
        token after it: the last known token has none."""
        self._block_size = block_size
        self._max_positions = max_positions
        self._catch_up = catch_up
        self._shift = shift
        self._progress: dict[Request, _Progress] = {}
        self._contents: dict[int, bytes] = {}
        """Block → digest of what the draft model has computed in all of it."""
        self._catch_up_left = 0

    def candidates(self, requests: Sequence[Request], rooms: Sequence[int]) -> list[Candidate]:
        """See :class:`~blade_llm.decoding.method.Method`."""
        self._catch_up_left = self._catch_up
        return [self._candidate(request, room) for request, room in zip(requests, rooms, strict=True)]

    def drafted(self, request: Request, count: int) -> tuple[int, tuple[int, int] | None]:
        """See :class:`~blade_llm.decoding.method.Method`. None of them while the draft model lags behind too far."""
        if not count:
            return 0, None
        progress, known = self._progress[request], len(request.token_ids)
        start, last = progress.computed, known - self._shift
        if last - start <= _BESIDE_DRAFTING:
            # The last draft token is not computed by the draft model: it makes none after it. What a head computes
            # from states of its own is computed again from the model's.
            progress.computed = last if self._shift else known + count - 1
            return count, (start, last)
        end = min(last - 1, start + self._catch_up_left)
        self._catch_up_left -= end - start
        progress.computed = end
        return 0, (start, end) if end > start else None

    def forget(self, request: Request) -> None:
        """See :class:`~blade_llm.decoding.method.Method`."""
        progress = self._progress.pop(request, None)
        if progress is not None and request.block_table is progress.block_table:
            self._note(request, progress)

    def _candidate(self, request: Request, room: int) -> Candidate:
        known = len(request.token_ids)
        progress = self._progress.get(request)
        if progress is None or progress.block_table is not request.block_table:
            progress = self._progress[request] = _Progress(request.block_table)
            progress.noted = self._cached_blocks(request)
            progress.computed = max(0, progress.noted * self._block_size - self._shift)
        # Of the tokens drafted last some were rejected, and the last known one was not computed.
        progress.computed = max(0, min(progress.computed, known - 1 - self._shift))
        self._note(request, progress)
        if room <= 0 or known <= self._shift or known + room > self._max_positions:
            return NO_CANDIDATE
        return Candidate(0, None)

    def _cached_blocks(self, request: Request) -> int:
        """Blocks of the request's beginning that another request left, with the draft model's values in them."""
        count = 0
        for block, digest in zip(request.block_table, request.chain.digests, strict=False):
            if self._contents.get(block) != digest:
                break
            count += 1
        return min(count, (len(request.token_ids) - 1) // self._block_size)

    def _note(self, request: Request, progress: _Progress) -> None:
        """Note the content of the blocks that are computed and will not change any more."""
        full = min(progress.computed, len(request.token_ids) - 1) // self._block_size
        digests = request.chain.digests
        for index in range(progress.noted, min(full, len(digests))):
            self._contents[request.block_table[index]] = digests[index]
            progress.noted = index + 1
