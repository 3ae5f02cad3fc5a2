"""The running and the waiting set: which requests own slots and KV blocks, which wait for them, and which are
preempted.

Everything that allocates or frees slots and blocks goes through here, so that each is owned exactly as often as it is
used, whatever ends in the middle of whatever.
"""

from __future__ import annotations

import time
from typing import Final

from blade_llm.cache.adapters import AdapterResidency
from blade_llm.cache.manager import KVCacheManager, PrefixMatch
from blade_llm.scheduling.beams.group import BeamGroup
from blade_llm.scheduling.images.encoding import ImageEncoding
from blade_llm.scheduling.images.limits import check_images
from blade_llm.scheduling.limits import SchedulerConfig
from blade_llm.scheduling.phase import Phase
from blade_llm.scheduling.plan import BlockUpdate
from blade_llm.scheduling.preemption_log import PreemptionLog
from blade_llm.scheduling.queue import RequestQueue, WaitingQueue
from blade_llm.scheduling.request import NO_SLOT, Request
from blade_llm.scheduling.sample_group import Admission, SampleGroup
from blade_llm.scheduling.step import Step

MAX_PREEMPTIONS: Final = 16
"""Times of preemptions that are kept of one request."""


class RequestSets:
    """The queues, the slots and the block tables of all live requests."""

    def __init__(self, config: SchedulerConfig, cache: KVCacheManager, images: ImageEncoding | None = None) -> None:
        """``images``: of a model that takes some."""
        self.cache = cache
        self.images = images
        self.waiting = WaitingQueue()
        self.running = RequestQueue()
        self.free_slots = list(range(config.max_num_seqs - 1, -1, -1))
        self.freed_slots: list[int] = []
        """Slots whose request left since the last plan: the next plan names them to the runner."""
        self.adapters = AdapterResidency(config.max_adapters)
        self.preemptions = 0
        self._preemption_log = PreemptionLog()
        self.sample_groups: dict[Request, SampleGroup] = {}
        """The samples of its prompt, of each live request that has several."""
        self.beam_groups: dict[Request, BeamGroup] = {}
        """The beams of each live beam search."""
        self._waiting_groups: list[SampleGroup] = []
        """Those with samples that wait: they may hold blocks."""

    def add(self, requests: list[Request]) -> None:
        """Add new requests to the waiting set; several are samples of one prompt."""
        if len(requests) > 1:
            group = SampleGroup(list(requests))
            self._waiting_groups.append(group)
            for request in requests:
                self.sample_groups[request] = group
        for request in requests:
            self.waiting.add(request)
            self.adapters.added(request.adapter)
            if request.images:
                self._images.add(request)

    def check_images(self, request: Request) -> None:
        """Check the images of a new request; raises :class:`~blade_llm.scheduling.request.RequestRefusedError`."""
        check_images(request, None if self.images is None else self.images.limits)
        self._images.check_room(request.pixels)

    def may_admit(self, request: Request, step: int) -> bool:
        """False: another sample of its prompt computes what it can share in the step after this one."""
        group = self.sample_groups.get(request)
        return group is None or not group.computing(step)

    def admission(self, request: Request, step: int) -> Admission | None:
        """The admission of a waiting request; None: not now.

        Raises nothing, whatever is held: a request alone in the cache finds room.
        """
        # A preempted request comes back when its last launched step is delivered and all its tokens are known.
        if request.steps_in_flight or len(self.free_slots) < request.num_slots:
            return None
        if request.matched and not self._shares(request) and not self._has_room(request, request.blocks_needed):
            return None
        admission = self._admission(request, step)
        if not self.running and admission.match.num_needed > self.cache.num_free and self._release_held():
            admission = self._admission(request, step)
        request.blocks_needed = admission.match.num_fresh
        return admission if self._has_room(request, admission.match.num_needed) else None

    def match(self, request: Request) -> PrefixMatch:
        """Find the cached prefix of a waiting request, and note how long it is and what room the request needs."""
        match = self.cache.match(request.chain, request.token_ids, request.cacheable)
        request.matched = True
        request.blocks_needed = match.num_fresh
        self._note_cached(request, len(match.cached))
        return match

    def remaining(self, request: Request) -> int:
        """Tokens of a waiting request's prefill, as far as is known."""
        return 1 if self._shares(request) else len(request.token_ids) - request.num_cached

    def refresh(self, request: Request) -> None:
        """Note what the prefix cache has got of a waiting request's prefix since :meth:`match`. Constant time where
        that is nothing."""
        if not request.matched:
            return
        while request.awaited_digest is not None and self.cache.pool.find(request.awaited_digest) is not None:
            request.blocks_needed -= 1
            self._note_cached(request, request.num_cached_blocks + 1)

    @property
    def room(self) -> int:
        """Blocks that the next request may take: one is kept for each that runs."""
        return self.cache.num_free - len(self.running) if self.running else self.cache.num_blocks

    def lacks_blocks(self, request: Request, room: int) -> bool:
        """Whether a waiting request that was looked at before finds no :attr:`room`, and nothing of its prefix has been
        cached since. Called for many requests in every step."""
        return (
            request.matched
            and request.blocks_needed > room
            and (request.awaited_digest is None or self.cache.pool.find(request.awaited_digest) is None)
            and request not in self.sample_groups
        )

    def admit(self, step: Step, request: Request, admission: Admission) -> None:
        """Give ``request`` its slots and the blocks of all its known tokens."""
        self.waiting.remove(request)
        self.running.add(request)
        request.enter_phase(Phase.PREFILL)
        request.slot = self.free_slots.pop()
        request.adapter_slot = self.adapters.take(request.adapter)
        if (beams := self.beam_groups.get(request)) is not None:
            beams.spare_slots = [self.free_slots.pop() for _ in range(request.num_slots - 1)]
        request.block_table = self.cache.allocate(admission.match)
        request.num_registered = admission.num_registered
        request.num_computed = request.num_cached = admission.num_computed
        request.prefill_end = len(request.token_ids)
        if request.images:
            self._images.admitted(request)
        group = self.sample_groups.get(request)
        if group is not None and (copy := group.admitted(request, admission, self.cache)) is not None:
            step.block_copies.append(copy)
        step.block_updates.append(BlockUpdate(request.slot, 0, list(request.block_table)))

    def launched(self, request: Request, step: int) -> None:
        """Note that ``step`` computes positions of ``request`` up to ``num_computed``, for the samples that share
        them, and for its images."""
        if request.images:
            self._images.computed(request)
        group = self.sample_groups.get(request)
        if group is not None:
            group.launched(request, step, self.cache)

    def grow(self, step: Step, request: Request, num_tokens: int) -> bool:
        """Allocate blocks until ``num_tokens`` fit, preempting others if need be; False when it was preempted
        itself."""
        table = request.block_table
        start, end = len(table), self.cache.blocks_for(num_tokens)
        while len(table) < end:
            block = self.allocate_block(request)
            if block is None:
                return False
            table.append(block)
        step.block_updates.append(BlockUpdate(request.slot, start, table[start:]))
        return True

    def allocate_block(self, request: Request) -> int | None:
        """A block for ``request``, preempting others if need be; None when it was preempted itself.

        The last of the running set is always the one to preempt, so none that this step has scheduled already.
        """
        while True:
            block = self.cache.allocate_block()
            if block is not None:
                return block
            if self._release_held():
                continue
            candidate = self.running[-1]
            self.preempt(candidate)
            if candidate is request:
                return None

    def preempt(self, request: Request) -> None:
        """Take slot and blocks away; the request is computed again from the tokens it has (often found in the prefix
        cache).

        A token of it in flight still counts: it is delivered while the request waits.
        """
        self.running.remove(request)
        self._release(request)
        if request.images:
            self._images.left(request)
        request.enter_phase(Phase.PREEMPTED)
        request.matched, request.num_cached = False, 0
        self.waiting.add(request)
        self.preemptions += 1
        if len(request.preempted_after) < MAX_PREEMPTIONS:
            request.preempted_after.append(time.monotonic() - request.created)
        self._preemption_log.preempted(request.request_id, self.preemptions)
        group = self.sample_groups.get(request)
        if group is not None and group not in self._waiting_groups:
            self._waiting_groups.append(group)

    def finish(self, request: Request) -> None:
        """Remove a request that has ended, whatever its phase was."""
        if request.is_running:
            self.running.remove(request)
            self._release(request)
        else:
            self.waiting.remove(request)
        if request.images:
            self._images.finished(request)
        self.adapters.ended(request.adapter)
        request.enter_phase(Phase.FINISHED)
        self.beam_groups.pop(request, None)
        group = self.sample_groups.pop(request, None)
        if group is not None:
            group.members.remove(request)
            group.release_if_unused(self.cache)
            if not group.num_waiting() and group in self._waiting_groups:
                self._waiting_groups.remove(group)

    def held_blocks(self) -> list[int]:
        """Blocks that are held for samples to come, as often as they are held."""
        return [block for group in self._waiting_groups for block in group.held]

    @property
    def _images(self) -> ImageEncoding:
        assert self.images is not None, "this model takes no images"
        return self.images

    def _admission(self, request: Request, step: int) -> Admission:
        group = self.sample_groups.get(request)
        admission = None if group is None else group.admission(request, step, self.cache)
        if admission is None:
            match = self.match(request)
            admission = Admission(match, len(match.cached) * self.cache.block_size, len(match.cached))
        return admission

    def _note_cached(self, request: Request, blocks: int) -> None:
        request.num_cached_blocks, request.num_cached = blocks, blocks * self.cache.block_size
        limit = self.cache.cacheable_blocks(len(request.token_ids), request.cacheable)
        request.awaited_digest = request.chain.digests[blocks] if blocks < limit else None

    def _shares(self, request: Request) -> bool:
        """Whether it takes the prompt's blocks from another sample of its prompt."""
        group = self.sample_groups.get(request)
        return group is not None and request.cacheable is None and group.can_share

    def _has_room(self, request: Request, blocks: int) -> bool:
        """Whether it fits with one block to spare for each running request, so that none is preempted right after."""
        if not self.running:
            return True
        return blocks + len(self.running) + request.num_slots - 1 <= self.cache.num_free

    def _release_held(self) -> bool:
        """Release what is held for samples to come; whether that was anything."""
        holding = [group for group in self._waiting_groups if group.held]
        for group in holding:
            group.release(self.cache)
        return bool(holding)

    def _release(self, request: Request) -> None:
        """Free slot and blocks. Launched steps may still write to them; the device runs later plans after those."""
        self.adapters.leave(request.adapter)
        slots = [request.slot]
        if (group := self.beam_groups.get(request)) is not None:
            if group.beams:
                slots = [beam.slot for beam in group.beams if beam.slot != NO_SLOT]
            for beam in group.beams:
                self.cache.release(beam.blocks)
            self.free_slots += group.spare_slots
            group.restart()
        self.cache.release(request.block_table)
        self.freed_slots += slots
        self.free_slots += slots
        request.slot = NO_SLOT
        request.block_table = []
        request.num_registered = request.num_computed = request.prefill_end = 0
