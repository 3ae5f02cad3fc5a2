"""Draft tokens (speculative decoding): adds to the decodes of a step what a drafter proposes, where nobody else needs
the room.

A draft token is verified in the step that computes it: it is accepted where it equals the token that the model itself
samples there, so outputs are the same with and without. A decode with draft tokens is not scheduled again before its
result is known, as the next draft goes on from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from blade_llm.scheduling.limits import SchedulerConfig
from blade_llm.scheduling.phase import Phase
from blade_llm.scheduling.plan import TokenUpdate
from blade_llm.scheduling.request import Request
from blade_llm.scheduling.request_sets import RequestSets
from blade_llm.scheduling.step import Step


class Draft(NamedTuple):
    """The draft tokens of one decode."""

    count: int
    """0: it is an ordinary decode."""
    tokens: list[int] | None = None
    """The tokens; None: the runner's draft model makes them."""


class StepTokens(NamedTuple):
    """What a step computed."""

    decodes: int
    """Sequences that sampled, those with draft tokens included."""
    draft_tokens: int
    draft_steps: int
    """Draft tokens of the decode that had most."""
    prefill_tokens: int


class Drafter(Protocol):
    """Proposes draft tokens, and learns how many were accepted."""

    def active(self, num_running: int) -> bool:
        """Whether decodes are to wait for their last token, so that drafts can follow it."""

    def propose(
        self, requests: Sequence[Request], rooms: Sequence[int], most_tokens: int, other_tokens: int
    ) -> Sequence[Draft]:
        """A draft for each of ``requests``, all of whose tokens are known.

        ``rooms``: draft tokens that each can have; ``most_tokens``: all together; ``other_tokens``: what else the step
        computes.
        """

    def observe(self, request: Request, drafted: int, accepted: int) -> None:
        """Of so many draft tokens of ``request`` the first ``accepted`` were accepted."""

    def observe_step(self, step: StepTokens, seconds: float) -> None:
        """A step took ``seconds``."""

    def forget(self, request: Request) -> None:
        """The request has ended."""


def add_drafts(step: Step, drafter: Drafter, sets: RequestSets, config: SchedulerConfig) -> None:
    """Add draft tokens to the decodes of a step that is otherwise complete.

    They take only tokens that the step has left, and blocks that are free beyond one for each running request: no
    draft delays a prefill or preempts anybody.
    """
    others = sum(chunk.count for chunk in step.chunks)
    most_tokens = config.max_batch_tokens - others
    decodes = [
        index
        for index, (chunk, request) in enumerate(zip(step.chunks, step.requests, strict=True))
        if chunk.count == 1 and request.phase is Phase.DECODE and request.num_in_flight == 1
        if chunk.start == len(request.token_ids) - 1 and not request.output_complete
    ]
    if not decodes or most_tokens <= 0:
        return
    requests = [step.requests[index] for index in decodes]
    rooms = [_room(request, sets) for request in requests]
    drafts = drafter.propose(requests, rooms, most_tokens, others - len(decodes))
    for index, request, draft in zip(decodes, requests, drafts, strict=True):
        if draft.count:
            _add(step, index, request, draft, sets)


def step_tokens(step: Step) -> StepTokens:
    """What ``step`` computes, for the drafter's costs."""
    drafts = [chunk.num_draft_tokens for chunk in step.chunks]
    return StepTokens(step.num_decodes, sum(drafts), max(drafts, default=0), step.prefill_tokens)


def _room(request: Request, sets: RequestSets) -> int:
    """Draft tokens that ``request`` can have: within its length, and within the blocks that nobody waits for."""
    known = len(request.token_ids)
    spare = max(0, sets.cache.num_free - len(sets.running))
    within_blocks = (len(request.block_table) + spare) * sets.cache.block_size - known
    return max(0, min(request.max_total - known - 1, within_blocks))


def _add(step: Step, index: int, request: Request, draft: Draft, sets: RequestSets) -> None:
    chunk, known = step.chunks[index], len(request.token_ids)
    count = draft.count
    missing = sets.cache.blocks_for(known + count) - len(request.block_table)
    if missing > sets.cache.num_free - len(sets.running):  # other drafts took the blocks
        count = len(request.block_table) * sets.cache.block_size - known
        if count <= 0:
            return
    elif missing > 0:
        sets.grow(step, request, known + count)
    if draft.tokens is not None:
        step.token_updates.append(TokenUpdate(request.slot, known, draft.tokens[:count]))
    step.chunks[index] = msgspec.structs.replace(chunk, count=1 + count, num_draft_tokens=count)
    request.num_in_flight += count
