"""Admission control: which waiting requests enter a step, and how its prefill tokens are divided.

The order is (priority, arrival), with three exceptions. A request that finds no room may be overtaken by those of its
priority that do, but ages by it: after so many nobody overtakes it any more, so the room that running requests leave is
its own. A short prompt need not wait until long ones are computed: half of a step's prefill tokens go to the shortest,
however far behind it stands; the other half goes to the first in order, so nobody ages by that.
And a request whose prefix another one computes just now waits for that, instead of computing it too.

What a step costs does not grow with the number that waits: only the first of the queue are looked at, and one that
finds no room is looked at again in constant time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

from blade_llm.scheduling.chunks import schedule_chunk
from blade_llm.scheduling.phase import Phase
from blade_llm.scheduling.request import Request
from blade_llm.scheduling.request_sets import RequestSets
from blade_llm.scheduling.step import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPolicy:
    """Bounds of what may happen out of order; :data:`FIRST_COME_FIRST_SERVED` allows nothing."""

    window: int = 32
    """For so many waiting requests, from the first, a step tries to find room."""
    reach: int = 128
    """So many it looks at: those that only wait for another request, or would get no tokens, cost next to nothing."""
    most_overtakes: int = 32
    """So many requests may be admitted ahead of an earlier one of their priority."""
    shortest_share: float = 0.5
    """Part of a step's prefill tokens that goes to the shortest prompts; the rest goes to the first in order."""
    shortest: int = 16
    """So many of the shortest that wait it looks at too, however many wait before them."""
    min_shared_blocks: int = 4
    """A request waits for a prefix that another one computes if at least so many blocks of it are still to come; 0: it
    never does, and is not looked at again when its prefix has been cached."""
    most_matches: int = 4
    """So many prompts a step are hashed and matched to know whether they are short."""


FIRST_COME_FIRST_SERVED = AdmissionPolicy(window=1, reach=1, shortest_share=0.0, shortest=0, min_shared_blocks=0)


class AdmissionControl:
    """Admits waiting requests and schedules prefill."""

    def __init__(self, sets: RequestSets, policy: AdmissionPolicy) -> None:
        self._sets = sets
        self._policy = policy
        self._computing: dict[Request, int] = {}
        """Admitted request with blocks that the prefix cache does not have yet → its ``num_computed`` when last looked
        at."""

    def schedule(self, step: Step, prefills: list[Request], may_admit: bool) -> list[Request]:
        """Divide the step's tokens among ``prefills``, those in progress, and the requests that it admits; returns
        these."""
        candidates = [request for request in prefills if request.phase is Phase.PREFILL and request.num_computable]
        in_progress = len(candidates)
        if may_admit:
            self._admit(step, candidates)
        remaining = [request.num_computable for request in candidates]
        share = int(step.tokens_left * self._policy.shortest_share)
        for request, count in zip(candidates, divide(remaining, step.tokens_left, share), strict=True):
            if count:
                schedule_chunk(step, request, count, self._sets)
        return candidates[in_progress:]

    def _admit(self, step: Step, candidates: list[Request]) -> None:
        """Admit requests that get tokens in this step, and append them to ``candidates``."""
        sets, policy = self._sets, self._policy
        lengths = _Lengths(candidates, step.tokens_left, int(step.tokens_left * policy.shortest_share))
        computing = self._computed_next()
        passed_priority: int | None = None
        no_room: list[Request] = []
        no_adapter_slot: list[Request] = []
        adapter_aged = False
        room, images = sets.room, sets.images
        crowded = images is not None and images.crowded
        tried, matches, aged = 0, policy.most_matches, False
        for request in self._looked_at():
            if tried >= policy.window or not sets.free_slots or aged:
                return
            if passed_priority is not None and request.priority > passed_priority:
                return
            if request.adapter and (adapter_aged or not sets.adapters.has_room(request.adapter)):
                # Others that use the adapters on the device go first, but not for ever: after so many the slots that
                # these leave are for who waits.
                if request.phase is Phase.PREEMPTED:
                    return
                passed_priority = request.priority if passed_priority is None else passed_priority
                no_adapter_slot.append(request)
                adapter_aged = adapter_aged or request.overtaken >= policy.most_overtakes
                continue
            if crowded and request.images and request.phase is not Phase.PREEMPTED:
                # It does not age: the encoder gets on whoever goes first, and what becomes free then is its own.
                passed_priority = request.priority if passed_priority is None else passed_priority
                continue
            lacks_room = bool(policy.min_shared_blocks) and sets.lacks_blocks(request, room)
            admission = None
            if not lacks_room:
                if not sets.may_admit(request, step.number):
                    continue
                if not lengths.takes_any and not request.matched and matches:
                    matches -= 1
                    sets.match(request)
                if policy.min_shared_blocks:
                    sets.refresh(request)
                    if self._awaits_prefix(request, computing):
                        continue
                if lengths.takes(sets.remaining(request)):
                    tried += 1
                    admission = sets.admission(request, step.number)
                    lacks_room = admission is None
            if admission is None or not lengths.takes(len(request.token_ids) - admission.num_computed):
                if request.phase is Phase.PREEMPTED:
                    return
                passed_priority = request.priority if passed_priority is None else passed_priority
                if lacks_room:  # who only lacks tokens gets them in turn, whoever overtakes it
                    no_room.append(request)
                    aged = request.overtaken >= policy.most_overtakes
                continue
            if self._awaits_prefix(request, computing):
                continue  # known only now that it was matched
            sets.admit(step, request, admission)
            room = sets.room
            tried -= 1
            if images is not None and request.images:
                crowded = images.crowded
            if request.adapter:
                for each in no_adapter_slot:
                    each.overtaken += 1
                    adapter_aged = adapter_aged or each.overtaken >= policy.most_overtakes
            for each in no_room:
                each.overtaken += 1
                aged = aged or each.overtaken >= policy.most_overtakes
            candidates.append(request)
            lengths.add(request.num_computable)
            if policy.min_shared_blocks and request.num_unregistered >= policy.min_shared_blocks:
                self._computing[request] = -1
                computing[request.chain.digests[request.num_registered]] = request

    def _looked_at(self) -> Iterator[Request]:
        """The first that wait, and, where more do, the shortest of those behind them. Who was admitted meanwhile does
        not count."""
        waiting, index = self._sets.waiting, 0
        request = waiting[0]
        while index < min(len(waiting), self._policy.reach):
            request = waiting[index]
            yield request
            if index < len(waiting) and waiting[index] is request:
                index += 1
        if index < len(waiting):
            last = request.order
            yield from (each for each in waiting.shortest(self._policy.shortest) if each.order > last)

    def _computed_next(self) -> dict[bytes, Request]:
        """Digest of the block that each of the requests in ``_computing`` brings into the prefix cache next. Not of
        those that got no tokens lately: nobody waits for who waits."""
        computing, before = {}, self._computing
        self._computing = {}
        for request, computed in before.items():
            if request.is_running and request.num_unregistered > 0:
                self._computing[request] = request.num_computed
                gets_on = request.num_computed > computed or request.awaits_image
                if gets_on or request.phase is not Phase.PREFILL:
                    computing[request.chain.digests[request.num_registered]] = request
        return computing

    def _awaits_prefix(self, request: Request, computing: dict[bytes, Request]) -> bool:
        """Whether another request, no less urgent, computes enough of the prefix of ``request``."""
        if not computing or not request.matched or request.cacheable is not None:
            return False
        if request.awaited_digest is None:
            return False
        digests, start = request.chain.digests, request.num_cached_blocks
        other = computing.get(request.awaited_digest)
        if other is None or other.priority > request.priority:
            return False
        theirs = other.chain.digests
        # A digest covers all before it: the two chains are equal up to some block, and differ from there.
        end = min(len(digests), len(theirs), other.prefill_end // self._sets.cache.block_size)
        shared = bisect_left(range(start, end), True, key=lambda block: digests[block] != theirs[block])
        return shared >= self._policy.min_shared_blocks


class WholePrompts:
    """Admission of prompts that a step computes wholly or not at all, of encoders: in order of (priority, arrival),
    up to the first that does not fit."""

    def __init__(self, sets: RequestSets) -> None:
        self._sets = sets

    def schedule(self, step: Step, prefills: list[Request], may_admit: bool) -> list[Request]:
        """Admit requests and schedule all of their tokens; returns the requests. ``prefills`` is empty: none is ever
        in progress."""
        assert not prefills, "a prompt was computed in parts"
        sets = self._sets
        admitted: list[Request] = []
        while may_admit and sets.free_slots and sets.waiting:
            request = sets.waiting[0]
            if len(request.token_ids) > step.tokens_left or not sets.adapters.has_room(request.adapter):
                break
            admission = sets.admission(request, step.number)
            if admission is None:
                break
            sets.admit(step, request, admission)
            schedule_chunk(step, request, request.prefill_end - request.num_computed, sets)
            admitted.append(request)
        return admitted


class _Lengths:
    """The remaining prefills of a step's candidates: who would get tokens."""

    def __init__(self, candidates: list[Request], tokens: int, share: int) -> None:
        self._sorted = sorted(request.num_computable for request in candidates)
        self._left = tokens - sum(self._sorted)
        self._share = share

    @property
    def takes_any(self) -> bool:
        """Whether tokens are left for one more, however long."""
        return self._left > 0

    def takes(self, remaining: int) -> bool:
        """Whether a prefill of ``remaining`` tokens would get any: those left, or of the share of the shortest."""
        if self._left > 0:
            return True
        share = self._share
        for length in self._sorted:
            if share <= 0 or length > remaining:
                break
            share -= length
        return share > 0

    def add(self, remaining: int) -> None:
        insort(self._sorted, remaining)
        self._left -= remaining


def divide(remaining: list[int], tokens: int, share: int) -> list[int]:
    """Divide ``tokens`` among prefills that have ``remaining`` to compute: ``share`` of them to the shortest, the rest
    in order."""
    if sum(remaining) <= tokens:
        return remaining
    counts = [0] * len(remaining)
    for index, given in _give(sorted(range(len(remaining)), key=remaining.__getitem__), remaining, share):
        counts[index] = given
    unmet = [length - count for length, count in zip(remaining, counts, strict=True)]
    for index, given in _give(range(len(remaining)), unmet, tokens - sum(counts)):
        counts[index] += given
    return counts


def _give(order: list[int] | range, wanted: list[int], tokens: int) -> Iterator[tuple[int, int]]:
    for index in order:
        if tokens <= 0:
            return
        given = min(wanted[index], tokens)
        tokens -= given
        yield index, given
