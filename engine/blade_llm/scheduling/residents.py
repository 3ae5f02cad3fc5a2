"""Who has a row and blocks, who waits for them, and who has to give them back.

Everything that takes or frees rows and blocks goes through here, so that each is owned exactly as often as it is used,
whatever ends in the middle of whatever.
"""

from __future__ import annotations

from blade_llm.cache.manager import KVCacheManager
from blade_llm.scheduling.limits import SchedulerConfig
from blade_llm.scheduling.plan import BlockUpdate
from blade_llm.scheduling.queue import RequestQueue
from blade_llm.scheduling.request import NO_ROW, Request, Status
from blade_llm.scheduling.samples import Entry, SampleGroup
from blade_llm.scheduling.step import Step


class Residents:
    """The queues, the rows and the block tables of all live requests."""

    def __init__(self, config: SchedulerConfig, cache: KVCacheManager) -> None:
        self.cache = cache
        self.waiting = RequestQueue()
        self.running = RequestQueue()
        self.free_rows = list(range(config.max_num_seqs - 1, -1, -1))
        self.freed_rows: list[int] = []
        """Rows whose request left since the last plan: the next plan tells the runner."""
        self.preemptions = 0
        self._groups: list[SampleGroup] = []
        """Those with samples that wait: they may hold blocks."""

    def add(self, requests: list[Request]) -> None:
        """Let new requests wait; several are samples of one prompt."""
        if len(requests) > 1:
            group = SampleGroup(list(requests))
            self._groups.append(group)
            for request in requests:
                request.group = group
        for request in requests:
            self.waiting.add(request)

    def may_enter(self, request: Request, step: int) -> bool:
        """False: another sample of its prompt computes what it can share in the step after this one."""
        return request.group is None or not request.group.computing(step)

    def entry(self, request: Request, step: int) -> Entry | None:
        """How a waiting request can enter; None: not now.

        Raises nothing, whatever is held: a request alone in the cache finds room.
        """
        # A preempted request comes back when its last launched step is delivered and all its tokens are known.
        if request.steps_in_flight or len(self.free_rows) < request.num_rows:
            return None
        if request.group is None and not self._has_room(request):
            return None
        entry = self._entry(request, step)
        if not self.running and entry.match.num_needed > self.cache.num_free and self._let_go():
            entry = self._entry(request, step)
        request.blocks_needed = entry.match.num_needed
        return entry if self._has_room(request) else None

    def enter(self, step: Step, request: Request, entry: Entry) -> None:
        """Give ``request`` its rows and the blocks of all its known tokens."""
        self.waiting.remove(request)
        self.running.add(request)
        request.status = Status.RUNNING
        request.row = self.free_rows.pop()
        if request.beams is not None:
            request.beams.spare_rows = [self.free_rows.pop() for _ in range(request.num_rows - 1)]
        request.block_table = self.cache.enter(entry.match)
        request.num_registered = entry.num_registered
        request.num_computed = entry.num_computed
        request.prefill_end = len(request.token_ids)
        group = request.group
        if group is not None and (copy := group.entered(request, entry, self.cache)) is not None:
            step.block_copies.append(copy)
        step.block_updates.append(BlockUpdate(request.row, 0, list(request.block_table)))

    def launched(self, request: Request, step: int) -> None:
        """``step`` computes positions of ``request``, a sample, up to ``num_computed``."""
        if request.group is not None:
            request.group.launched(request, step, self.cache)

    def grow(self, step: Step, request: Request, num_tokens: int) -> bool:
        """Take blocks until ``num_tokens`` fit, preempting others if need be; False when it had to go itself."""
        table = request.block_table
        start, end = len(table), self.cache.blocks_for(num_tokens)
        while len(table) < end:
            block = self.take(request)
            if block is None:
                return False
            table.append(block)
        step.block_updates.append(BlockUpdate(request.row, start, table[start:]))
        return True

    def take(self, request: Request) -> int | None:
        """A block for ``request``, preempting others if need be; None when it had to go itself.

        The victim is always the last of the running, so none that this step has scheduled already.
        """
        while True:
            block = self.cache.take()
            if block is not None:
                return block
            if self._let_go():
                continue
            victim = self.running[-1]
            self.preempt(victim)
            if victim is request:
                return None

    def preempt(self, request: Request) -> None:
        """Take row and blocks away; it will be computed again from the tokens it has (often found in the prompt cache).

        A token of it in flight still counts: it is delivered while the request waits.
        """
        self.running.remove(request)
        self._release(request)
        request.status = Status.WAITING
        request.blocks_needed = 0
        self.waiting.add(request)
        self.preemptions += 1
        if request.group is not None and request.group not in self._groups:
            self._groups.append(request.group)

    def leave(self, request: Request) -> None:
        """It has ended, wherever it was."""
        if request.status is Status.RUNNING:
            self.running.remove(request)
            self._release(request)
        else:
            self.waiting.remove(request)
        request.status = Status.FINISHED
        group = request.group
        if group is not None:
            group.members.remove(request)
            group.settle(self.cache)
            if not group.num_waiting() and group in self._groups:
                self._groups.remove(group)

    def held(self) -> list[int]:
        """Blocks that are held for samples to come, as often as they are held."""
        return [block for group in self._groups for block in group.held]

    def _entry(self, request: Request, step: int) -> Entry:
        entry = None if request.group is None else request.group.entry(request, step, self.cache)
        if entry is None:
            match = self.cache.match(request.chain, request.token_ids, request.cacheable)
            entry = Entry(match, len(match.cached) * self.cache.block_size, len(match.cached))
        return entry

    def _has_room(self, request: Request) -> bool:
        """Whether it fits with one block to spare for each running request, so that none is preempted right after."""
        if not self.running:
            return True
        return request.blocks_needed + len(self.running) + request.num_rows - 1 <= self.cache.num_free

    def _let_go(self) -> bool:
        """Give up what is held for samples to come; whether that was anything."""
        holding = [group for group in self._groups if group.held]
        for group in holding:
            group.let_go(self.cache)
        return bool(holding)

    def _release(self, request: Request) -> None:
        """Free row and blocks. Launched steps may still write to them; the device runs later plans after those."""
        rows = [request.row]
        if (beams := request.beams) is not None:
            if beams.lanes:
                rows = [lane.row for lane in beams.lanes if lane.row != NO_ROW]
            for lane in beams.lanes:
                self.cache.release(lane.blocks)
            self.free_rows += beams.spare_rows
            beams.restart()
        self.cache.release(request.block_table)
        self.freed_rows += rows
        self.free_rows += rows
        request.row = NO_ROW
        request.block_table = []
        request.num_registered = request.num_computed = request.prefill_end = 0
        request.decoding = request.jumping = False
