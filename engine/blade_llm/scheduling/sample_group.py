"""Parallel sampling: several samples of one prompt, whose blocks are computed once and shared by reference count.

Whichever sample comes first computes the prompt; the others wait that long. Then each is admitted with the prompt's
full blocks and a copy of the one that is filled in part (copy-on-write), and computes the last token of the prompt, for
its logits. While samples wait, the group holds the prompt's blocks itself, so that they stay when the first sample ends
early. What is held for nobody but samples to come is released when others need room: then the prompt is computed again.
"""

from __future__ import annotations

from typing import NamedTuple

from blade_llm.cache.manager import KVCacheManager, PrefixMatch
from blade_llm.scheduling.plan import BlockCopy
from blade_llm.scheduling.request import Request


class Admission(NamedTuple):
    """The blocks with which a request can be admitted now."""

    match: PrefixMatch
    num_computed: int
    """Positions it need not compute."""
    num_registered: int = 0
    """Blocks that the prefix cache has."""
    copied: int | None = None
    """The block whose copy is the first fresh one."""


class SampleGroup:
    """The samples of one prompt that have not ended."""

    def __init__(self, members: list[Request]) -> None:
        self.members = members
        self.shared = members[0].num_prompt_tokens - 1
        """Positions of the prompt that only one sample needs to compute."""
        self.counted = False
        """The prompt and its cached tokens have been counted."""
        self._digests = members[0].chain.digests
        """Begin with those of the prompt's full blocks."""
        self._held: list[int] = []
        """Blocks of the shared positions."""
        self._held_since = -1
        """The step that computes the last of them."""

    @property
    def held(self) -> list[int]:
        """Blocks that the group itself holds."""
        return self._held

    @property
    def can_share(self) -> bool:
        """Whether a sample that is admitted now shares the prompt's blocks."""
        return bool(self._held) or self._donor() is not None

    def num_waiting(self) -> int:
        """Samples without a slot."""
        return sum(member.is_waiting for member in self.members)

    def computing(self, step: int) -> bool:
        """Whether a sample computes the prompt just now: the others had better wait until it is launched."""
        if self._held:
            return self._held_since == step
        return any(member.is_running and member.num_computed < self.shared for member in self.members)

    def launched(self, request: Request, step: int, cache: KVCacheManager) -> None:
        """Hold the prompt's blocks once ``step`` computes the last of them: ``num_computed`` of ``request`` says so."""
        if not self._held and request.num_computed >= self.shared and self.num_waiting():
            self._hold(request, step, cache)

    def admission(self, request: Request, step: int, cache: KVCacheManager) -> Admission | None:
        """The admission of ``request`` by sharing; None when there is nothing to share, or it must compute the prompt
        itself."""
        if request.cacheable is not None:
            return None
        if not self._held:
            donor = self._donor()
            if donor is None:
                return None
            self._hold(donor, step - 1, cache)
        full, partial = divmod(self.shared, cache.block_size)
        copied = self._held[full] if partial else None
        taken = full
        if copied is not None and self.num_waiting() == 1 and cache.is_writable(copied):
            taken, copied = full + 1, None  # nobody else needs it any more
        fresh = cache.blocks_for(len(request.token_ids)) - taken
        return Admission(PrefixMatch(self._held[:taken], fresh, fresh), self.shared, copied=copied)

    def admitted(self, request: Request, admission: Admission, cache: KVCacheManager) -> BlockCopy | None:
        """Take note that ``request`` was admitted; returns the copy that this takes."""
        full = self.shared // cache.block_size
        if len(request.chain.digests) < full:
            request.chain.digests = self._digests[:full]
        copy = None if admission.copied is None else BlockCopy(admission.copied, request.block_table[full])
        self.release_if_unused(cache)
        return copy

    def release_if_unused(self, cache: KVCacheManager) -> None:
        """Release the blocks when no sample waits for them."""
        if self._held and not self.num_waiting():
            self.release(cache)

    def release(self, cache: KVCacheManager) -> None:
        """Release the blocks, whoever waits."""
        cache.release(self._held)
        self._held = []

    def _donor(self) -> Request | None:
        """A sample that has computed, or launched, all that others share."""
        running = (member for member in self.members if member.is_running)
        return next((member for member in running if member.num_computed >= self.shared), None)

    def _hold(self, donor: Request, step: int, cache: KVCacheManager) -> None:
        self._held = donor.block_table[: cache.blocks_for(self.shared)]
        self._held_since = step
        cache.share(self._held)
